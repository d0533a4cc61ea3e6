"""Runs that go on after a failure: what nodes say of it, and lost machines that are started again."""

from datetime import UTC, datetime
from typing import Any

from django.db import transaction
from django.db.models import F
from django.utils import timezone

from engine.runtime.recovery.told import smaller_layout
from webapp.jobs import notify
from webapp.jobs.models import RANK_OVER, Desired, MarkLevel, RankState, RankStatus, Run, RunEvent, Status
from webapp.jobs.services.status import add_mark, lock

_FROM = {
    "memory": "from the memory of its machines",
    "peer": "with replicas giving their state to what was lost",
    "checkpoint": "from its last checkpoint",
    "start": "from the beginning: nothing was saved",
}


@transaction.atomic
def record_recovery(run: Run, event: dict[str, Any]) -> bool:
    """Take in a `recovery` event of `run` as a mark: what failed and what it cost; whether it was news."""
    at = datetime.fromtimestamp(float(event["t"]), UTC)
    cost, noticed = float(event["lost_s"]), float(event["detected_s"])
    how = _FROM[event["from"]]
    silence = f" after {noticed:.1f} s of silence" if noticed else ""
    text = (
        f"Recovered: goes on with iteration {int(event['iteration']) + 1:,} {how}; {cost:.1f} s were lost. "
        f"What failed{silence}: {event['detail']}"
    )
    if "layout" in event:
        text = f"{smaller_layout(event['layout'])} {text}"
    text = text[:600]
    if RunEvent.objects.filter(run=run, at=at, text=text).exists():
        return False
    add_mark(run, MarkLevel.WARN, text, at)
    # Out of the run for good: nobody waits for them or starts them again, and their GPUs are free.
    left = RankState.objects.filter(run=run, rank__in=event.get("left", ())).exclude(state__in=RANK_OVER)
    left.update(state=RankStatus.FINISHED, state_since=timezone.now(), detail="The run went on without it.")
    notify.run_changed(run.pk)
    return True


@transaction.atomic
def bring_back(run: Run, gone: RankState, why: str) -> bool:
    """Have the ranks of `run` on the machine of `gone`, which is lost, started again; whether they will be.

    Not where the job does not say so, nor more often than it says (recovery.attempts).
    """
    run = lock(run.pk)
    settings = run.recovery
    wanted = run.status == Status.RUNNING and run.desired_state == Desired.RUNNING
    if settings is None or not wanted or gone.start > settings.attempts:
        return False
    RankState.objects.filter(run=run, node=gone.node).update(
        state=RankStatus.ASSIGNED, state_since=timezone.now(), start=F("start") + 1, dispatched_at=None,
        detail=why[:500], exit_code=None, pid=None,
    )  # fmt: skip
    add_mark(run, MarkLevel.WARN, f"{gone.node.name} lost its ranks: {why} They are started again.")
    notify.run_changed(run.pk)
    notify.reconcile_soon()
    return True
