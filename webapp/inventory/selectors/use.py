"""How the GPUs of data centres are used, counted by the database."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, F, Q, QuerySet, Sum

from webapp.common.work import work
from webapp.inventory.models import Node, NodeState, silent_now


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """GPUs and nodes of one data centre, or of several together.

    Attributes
    ----------
    silent : GPUs of nodes that answered before and are silent.
    never : GPUs of nodes that were never heard of.
    cost_per_hour : of the busy GPUs, in $; `whole_cost_per_hour` if all were busy.
    """

    gpus: int = 0
    busy: int = 0
    silent: int = 0
    never: int = 0
    nodes: int = 0
    nodes_silent: int = 0
    nodes_never: int = 0
    cost_per_hour: float = 0.0
    whole_cost_per_hour: float = 0.0

    @property
    def idle(self) -> int:
        """GPUs that answer and train nothing."""
        return max(0, self.gpus - self.busy - self.away)

    @property
    def away(self) -> int:
        """GPUs of nodes that do not answer now."""
        return self.silent + self.never

    @property
    def said(self) -> str:
        """In words."""
        if not self.gpus:
            return "no GPUs yet"
        away = ((self.silent, "silent"), (self.never, NodeState.NEVER.label.lower()))
        return ", ".join(
            [f"{self.busy:,} of {self.gpus:,} busy", *(f"{n:,} {word}" for n, word in away if n)]
        )


def gpu_use(dcs: Iterable[int] | QuerySet[Any, Any]) -> dict[int, Use]:
    """The use of each data centre of `dcs` (ids, or their query) that has nodes."""
    silent, never = silent_now(), Q(last_seen=None)
    work_rows = work().held().filter(dc__in=dcs).order_by()
    busy: dict[int, tuple[int, Any]] = {
        pk: (count, cost)
        for pk, count, cost in work_rows.values_list("dc").annotate(
            Count("pk"), Sum("node__pool__price_per_gpu_hour")
        )
    }
    counted = (
        Node.objects.filter(dc__in=dcs)
        .order_by()
        .values("dc")
        .annotate(
            all_gpus=Sum("gpus"),
            silent=Sum("gpus", filter=silent, default=0),
            never_gpus=Sum("gpus", filter=never, default=0),
            count=Count("pk"),
            silent_nodes=Count("pk", filter=silent),
            never=Count("pk", filter=never),
            whole=Sum(F("gpus") * F("pool__price_per_gpu_hour")),
        )
        .values_list("dc", "all_gpus", "silent", "never_gpus", "count", "silent_nodes", "never", "whole")
    )
    uses = {}
    for pk, gpus, silent_gpus, never_gpus, count, silent_nodes, never_nodes, whole in counted:
        held_gpus, cost = busy.get(pk, (0, 0))
        uses[pk] = Use(
            gpus=gpus,
            busy=min(held_gpus, gpus),
            silent=silent_gpus,
            never=never_gpus,
            nodes=count,
            nodes_silent=silent_nodes,
            nodes_never=never_nodes,
            cost_per_hour=float(cost),
            whole_cost_per_hour=float(whole),
        )
    return uses


def together(uses: Iterable[Use]) -> Use:
    """The use of several data centres as one."""
    rows = list(uses)
    return Use(**{name: sum(getattr(use, name) for use in rows) for name in Use.__dataclass_fields__})
