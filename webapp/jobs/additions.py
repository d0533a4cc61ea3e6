"""What jobs do on the inventory, and what they add to its pages."""

from typing import Any

from django.contrib import messages
from django.db.models import Q, QuerySet
from django.http import HttpRequest

from engine.inputs import parse
from engine.job.job import TrainJob
from webapp.accounts.permissions import visible_or_404
from webapp.common.additions import Addition, Context
from webapp.common.lists import bound_table
from webapp.inventory.mentions import any_of, mentions
from webapp.inventory.models import DataCenter, GpuPool, Node, Thing
from webapp.jobs.models import HOLDING, RankState, Run
from webapp.jobs.selectors import runs_on
from webapp.jobs.services import stop_at_boundary
from webapp.jobs.tables import RunTable
from webapp.schedules.selectors import compared


def end_runs_on(actor: Any, thing: Node | DataCenter, again: bool) -> int:
    """Have the runs on `thing` end after a whole iteration; with `again` they start elsewhere."""
    why = f"{thing} is draining"
    return sum(stop_at_boundary(actor, run, why=why, again=again) for run in runs_on(thing))


def runs_of(thing: Thing) -> QuerySet[Run]:
    """The runs whose history `thing` is a part of."""
    if isinstance(thing, Node):
        where = Q(ranks__node=thing)
    elif isinstance(thing, GpuPool):
        where = Q(ranks__node__pool=thing)
    elif isinstance(thing, DataCenter):
        where = Q(ranks__dc=thing)
    else:
        where = any_of(Q(job__document__contains=mention) for mention in mentions(thing))
    return Run.objects.filter(where).distinct().for_lists()


def offered_to_comparison(request: HttpRequest, pk: int) -> tuple[Context | None, Context]:
    """The first values of a comparison of the schedules of run `pk`, where it has schedules."""
    run = visible_or_404(Run.objects.select_related("job"), request.user, pk=pk)
    if run.job.swaps:
        messages.info(request, f"{run} has no schedule to compare: its workers swap.")
        return None, {}
    return compared(f"{run} compared", parse(TrainJob, run.job.document).scenario), {}


def _of_node(request: HttpRequest, context: Context) -> Context:
    node = context["node"]
    ranks = node.ranks.filter(run__status__in=HOLDING).select_related("run__job").order_by("gpu")
    leaving = [run for run in runs_on(node) if run.boundary_why] if node.is_draining else []
    return {"ranks": ranks, "leaving": leaving}


def _of_link(request: HttpRequest, context: Context) -> Context:
    link = context["link"]
    over = RankState.objects.filter(dc_id=link.b_id).values("run")
    return {"runs": _table(request, Q(ranks__dc=link.a_id) & Q(pk__in=over))}


def _table(request: HttpRequest, where: Q) -> Any:
    runs = Run.objects.visible_to(request.user).current().for_lists().with_models().filter(where).distinct()
    return bound_table(request, RunTable, runs, prefix="runs-")


ADDITIONS = (
    Addition(
        page="node",
        order=10,
        name="ranks",
        context=_of_node,
        templates={"ranks": "jobs/node_ranks.html", "lines": "jobs/node_leaving.html"},
    ),
    Addition(page="drain", order=10, name="runs", templates={"runs": "jobs/drain_runs.html"}),
    Addition(
        page="datacenter",
        order=10,
        name="runs",
        context=lambda request, context: {"runs": _table(request, Q(ranks__dc=context["datacenter"]))},
        templates={"runs": "jobs/datacenter_runs.html"},
    ),
    Addition(
        page="design-swap", order=10, name="launch", templates={"actions": "jobs/swap_plan_launch.html"}
    ),
    Addition(page="link", order=10, name="runs", context=_of_link, templates={"runs": "jobs/link_runs.html"}),
)
