"""The list of runs; and the queue: which runs wait, in which order they get GPUs, and what they wait for."""

from typing import Any

from django.contrib import messages
from django.db.models import Case, F, Value, When, Window
from django.db.models.functions import Lag, Lead, RowNumber
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from webapp.accounts.models import OPERATORS, Team
from webapp.accounts.permissions import require, require_somewhere, visible_or_404
from webapp.common.lists import list_page
from webapp.common.queries import whole
from webapp.jobs import archive
from webapp.jobs.filters import QueueFilterSet, RunFilterSet
from webapp.jobs.models import Priority, Run, Status
from webapp.jobs.services import move_in_queue, set_priority
from webapp.jobs.tables import QueueTable, RunTable, WatchedQueueTable


def run_list(request: HttpRequest) -> HttpResponse:
    return list_page(
        request,
        title="Runs",
        rows=Run.objects.visible_to(request.user).for_lists().with_models(),
        filter_class=RunFilterSet,
        table_class=RunTable,
        create=("jobs:swap-launch", "New swap run"),
        bulk=archive.pages.bulk(request),
        compare="jobs:run-compare",
        actions=[
            (reverse("jobs:run-queue"), "Queue"),
            (reverse("jobs:run-compare"), "Compare runs"),
        ],
        empty="No runs yet. Open a plan and launch an option, or launch workers that swap.",
    )


def _queued(user: Any) -> Any:
    """Queued runs that `user` sees, with their `position` among those of their team that only lack GPUs, and
    the runs `above` and `below` of the same priority with which `user` may swap them."""
    searched = Case(When(search=None, then=Value(0)), default=Value(1))
    rows = Run.objects.visible_to(user).filter(status=Status.QUEUED).for_lists().with_models().in_order()
    order = [F("priority").desc(), F("order").asc()]
    queue: list[Any] = [F("job__team"), searched]
    position = Window(RowNumber(), partition_by=queue, order_by=order)
    same: dict[str, Any] = {"partition_by": [*queue, F("priority")], "order_by": F("order").asc()}
    near = {"above": Window(Lag("pk"), **same), "below": Window(Lead("pk"), **same)}
    operated = Team.objects.with_role(user, OPERATORS)
    movable = Case(When(job__team__in=operated, search=None, then=Value(True)), default=Value(False))
    rows = rows.select_related("job__team").annotate(position=position, movable=movable, **near)
    return rows.order_by("job__team__name", *order)


@never_cache
def run_queue(request: HttpRequest) -> HttpResponse:
    operates = bool(archive.pages.bulk(request))
    return list_page(
        request,
        title="Queue",
        note="by team and priority; a run that lacks GPUs does not hold up others",
        rows=_queued(request.user),
        filter_class=QueueFilterSet,
        table_class=QueueTable if operates else WatchedQueueTable,
        chosen="jobs/queue_chosen.html" if operates else "",
        actions=[(reverse("jobs:run-list"), "All runs")],
        empty="No run waits. A run stands here until every stage has its GPUs.",
        context={"priorities": Priority},
    )


@require_POST
def run_priority(request: HttpRequest) -> HttpResponse:
    """Give the runs `pk` another `priority`; then back to the queue, or to the page of the one run."""
    require_somewhere(request.user)
    named = {str(each.value): each for each in Priority}
    runs, priority = _chosen(request), named.get(request.POST.get("priority", ""))
    if not runs or priority is None:
        messages.error(request, "Nothing was changed. Tick runs in the queue, then choose a priority.")
        return redirect("jobs:run-queue")
    for run in runs:
        require(request.user, run.job.team)
    changed = [run for run in runs if set_priority(request.user, run, priority)]
    if changed:
        which = str(runs[0]) if len(runs) == 1 else f"{len(changed)} of {len(runs)} runs"
        messages.success(request, f"Priority {priority.label.lower()}: {which}.")
    else:
        messages.info(request, "Nothing was changed: the runs had this priority, or wait no longer.")
    if "query" not in request.POST and len(runs) == 1:
        return redirect("jobs:run-detail", pk=runs[0].pk)
    return redirect("jobs:run-queue")


@require_POST
def run_move(request: HttpRequest) -> HttpResponse:
    """Move a queued run `up` or `down` by one among those of its priority; then back to its row."""
    require_somewhere(request.user)
    up = "up" in request.POST
    named = whole(request.POST.get("up" if up else "down", ""))
    if named is None:
        messages.error(request, "Nothing was moved. Press an arrow in the queue.")
        return redirect("jobs:run-queue")
    run = visible_or_404(Run.objects.select_related("job__team"), request.user, pk=named)
    if not move_in_queue(request.user, run, up=up):
        messages.info(
            request, "Nothing was moved: the run is at that end of its priority, or waits no longer."
        )
    return redirect(f"{reverse('jobs:run-queue')}#queued-{run.pk}")


def _chosen(request: HttpRequest) -> list[Run]:
    """The runs that the request names. Raises Http404 where the user does not see one of them."""
    keys = [whole(text) for text in dict.fromkeys(request.POST.getlist("pk"))]
    runs = list(Run.objects.visible_to(request.user).filter(pk__in=keys).select_related("job__team"))
    if len(runs) < len(keys):
        raise Http404
    return runs
