"""A broker is of one site: two would take each other's tasks, events and broker users of nodes.

The site's id is in its database and, once the site has claimed it, in the broker. Copies of a database have
one id: give a copy a broker of its own, as every site.
"""

import json

from django.conf import settings

from webapp.common import broker
from webapp.computations.services import site_identity

KEY = "control:site"
REMEDY = (
    "Give each site a Valkey of its own. If that site is gone, or this is the same site with a new database, "
    "run: manage.py claim_broker --take"
)


class BrokerTaken(Exception):
    """Another site uses the broker; the message says which, and what to do."""


def claim_broker(*, take: bool = False) -> None:
    """Make the broker this site's; `take`: though it is another one's.

    Raises
    ------
    BrokerTaken
        It is another one's.
    redis.exceptions.RedisError
        It does not answer, or takes no writes.
    """
    database = settings.DATABASES["default"]
    where = f"database {database['NAME']} on {database['HOST'] or 'this machine'}"
    mine = {"site": site_identity(), "where": where}
    client = broker.client()
    if take:
        client.set(KEY, json.dumps(mine))
        return
    text = client.get(KEY)
    if text is None:  # a broker that is full refuses to write, even what is there
        client.set(KEY, json.dumps(mine), nx=True)
        text = client.get(KEY)
    claim = json.loads(text or "{}")
    if claim.get("site") != mine["site"]:
        other = claim.get("where", "an unknown database")
        raise BrokerTaken(f"VALKEY_URL: the broker is used by another site ({other}). {REMEDY}")
