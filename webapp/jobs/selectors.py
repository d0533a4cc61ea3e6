"""What runs where: on a node, in a data centre, over a link."""

from typing import Any

from django.db.models import QuerySet

from webapp.inventory.models import DataCenter, Node
from webapp.jobs.models import RANK_OVER, RankState, Run


def held() -> QuerySet[RankState]:
    """The ranks that hold a GPU now."""
    return RankState.objects.exclude(state__in=RANK_OVER)


def runs_on(thing: Node | DataCenter) -> QuerySet[Run]:
    """The runs with living ranks on `thing`, the oldest first."""
    there: dict[str, Any] = {"node": thing} if isinstance(thing, Node) else {"dc": thing}
    runs = Run.objects.open().filter(pk__in=held().filter(**there).values("run"))
    return runs.select_related("job__team").order_by("pk")
