"""Notices: written in the transaction of what they tell of, mailed afterwards by upkeep."""

from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from webapp.accounts import mail
from webapp.accounts.models import ADMINS, User
from webapp.prefill.models import Notice, Tenancy

MAIL_TRIES = 5
AT_ONCE = 50


def tell(tenancy: Tenancy, text: str, *, tenant: bool = True, by: Any = None) -> None:
    """Leave a notice for the active admins of the team and the tenant; never for who did it (`by`)."""
    admins = User.objects.filter(
        is_active=True, memberships__team=tenancy.team_id, memberships__role__in=ADMINS
    )
    people = set(admins.values_list("pk", flat=True))
    if tenant:
        people.add(tenancy.tenant_id)
    people.discard(getattr(by, "pk", None))
    Notice.objects.bulk_create(
        Notice(user_id=person, tenancy=tenancy, text=text[:600]) for person in sorted(people)
    )


def mail_notices() -> int:
    """Send what was not mailed yet, where a mail server is named; returns how many it took.

    One that the server refuses MAIL_TRIES times stays on its reader's page alone.
    """
    if not mail.configured():
        return 0
    mails = 0
    for notice in _waiting():
        took = not notice.user.email or mail.send_notice(
            notice.user.email, f"{notice.tenancy} on Meridian", notice.text
        )
        with transaction.atomic():
            mine = Notice.objects.filter(pk=notice.pk)
            mine.update(
                mail_tries=F("mail_tries") + 1, mailed_at=timezone.now() if took else None
            )  # no address: nothing to send
        mails += bool(took and notice.user.email)
    return mails


def _waiting() -> Iterable[Notice]:
    rows = Notice.objects.filter(mailed_at=None, mail_tries__lt=MAIL_TRIES)
    return rows.select_related("user", "tenancy").order_by("at")[:AT_ONCE]
