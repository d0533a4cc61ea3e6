"""Workers of strategy swap: the run goes on without those that are lost, as long as one is left.

Who is lost, its own node or the tracker says: the tracker hears workers that the site does not, and the other
way round. What a lost worker had computed, the others compute again.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from django.db import transaction
from django.utils import timezone

from engine.job.events.training import Workers
from engine.job.locations import dcs_of_pipelines
from webapp.inventory.selectors import several
from webapp.jobs import notify
from webapp.jobs.models import RANK_OVER, MarkLevel, RankState, RankStatus, Run, RunEvent
from webapp.jobs.services.boundary import fail_run, finish
from webapp.jobs.services.rank_words import place, rank_failure
from webapp.jobs.services.status import add_mark, lock


@transaction.atomic
def record_workers(run: Run, event: Workers) -> bool:
    """Take in that workers came or went, as the tracker says; whether it was news.

    A new tracker may say again what the one before it said.
    """
    known = run.ranks.select_related("node").order_by("rank")
    names = {rank.rank: place(rank) for rank in known}
    parts = [
        _sentence([names[rank] for rank in ranks or ()], verb)
        for ranks, verb in ((event.lost, "lost"), (event.left, "gone as planned"), (event.joined, "new"))
    ]
    there = len(event.workers)
    text = (
        " ".join(filter(None, parts)) + f" {there} {'worker computes' if there == 1 else 'workers compute'}"
    )
    text = f"{text} iteration {event.step + 1:,}."
    if RunEvent.objects.filter(run=run, text=text[:600]).exists():
        return False
    level = MarkLevel.WARN if event.lost else MarkLevel.INFO
    add_mark(run, level, text, datetime.fromtimestamp(event.t, UTC))
    _let_go(run, (*(event.lost or ()), *(event.left or ())), "The run continued without it.")
    dcs_of_workers = dcs_of_pipelines(run.job.document)
    dcs = {str(rank): list(dcs_of_workers[rank]) for rank in event.workers}
    run.cuts = [*run.cuts, {"iteration": event.step, "dcs_of_rank": dcs}]
    run.save(update_fields=["cuts"])
    notify.run_changed(run.pk)
    return True


@transaction.atomic
def lose_worker(run: Run, rank: RankState, why: str) -> None:
    """A worker is gone, as its node says, or no longer says: its GPU is free."""
    _let_go(run, [rank.rank], why)
    notify.run_changed(run.pk)


@transaction.atomic
def end_without_workers(run: Run) -> bool:
    """End `run` if none of its workers is left; whether that is so."""
    run = lock(run.pk)
    ranks = list(run.ranks.select_related("node").order_by("state_since", "rank"))
    if run.is_over or any(rank.state not in RANK_OVER for rank in ranks):
        return run.is_over
    last = run.steps if run.stop_after is None else run.stop_after + 1
    if run.done >= last and any(rank.state == RankStatus.FINISHED for rank in ranks):
        finish(run)
        return True
    failed = [rank for rank in ranks if rank.state == RankStatus.FAILED]
    failed.sort(key=lambda rank: rank.exit_code is not None)  # who knows why has not ended by itself
    fail_run(run, rank_failure(failed[0]) if failed else f"No worker is left. {rank_failure(ranks[-1])}")
    return True


def _let_go(run: Run, ranks: Iterable[int], why: str) -> None:
    open_ranks = RankState.objects.filter(run=run, rank__in=ranks).exclude(state__in=RANK_OVER)
    open_ranks.update(state=RankStatus.LEFT, state_since=timezone.now(), detail=why[:500])


def _sentence(names: list[str], verb: str) -> str:
    return f"{several(names)} {'is' if len(names) == 1 else 'are'} {verb}." if names else ""
