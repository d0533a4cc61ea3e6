"""One rank's side of re-planning: its reports, and its change to another schedule.

Reports lie in the rendezvous store, where each takes the place of one that is a few iterations old. The first
rank reads them, judges and plans. A new schedule is announced there as text, at the start of iteration N and
before the first rank sends anything of N, for iteration N + 1: no rank can finish N without the first one, so
all find it in time (as with engine.train.boundary).
"""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Protocol

from engine.errors import InputError
from engine.job.adapt.judge import Judge, Verdict
from engine.job.adapt.measured import LATENCY, as_rows, planned, slowest, summary
from engine.job.adapt.replan import ReplanResult, replan
from engine.job.events.base import Emit
from engine.job.events.incidents import Adapted
from engine.job.job import TrainJob
from engine.schedule import Schedule
from engine.schedule.text import parse_schedule
from engine.schedule.timing import DeadlockError
from engine.simulate.spans import Span

log = logging.getLogger(__name__)
SLOTS = 4  # reports of a rank that are kept: none is more than two iterations behind the first rank
WARM_UP = 2  # iterations that are not judged
# A greedy plan is there within milliseconds and can be announced at once; a search runs during training.
AT_ONCE_S = 0.1


Latencies = Callable[[], Mapping[tuple[int, int], float]]


class Store(Protocol):
    """The methods used of torch.distributed's stores."""

    def check(self, keys: list[str], /) -> bool: ...
    def get(self, key: str, /) -> bytes: ...
    def multi_get(self, keys: list[str], /) -> list[bytes]: ...
    def set(self, key: str, value: str, /) -> None: ...


class Follower:
    """Reports what a rank measures, and learns of new schedules.

    Parameters
    ----------
    latencies_ms : of the links of this rank, as measured at present, by their two stages.
    """

    def __init__(self, store: Store, *, rank: int, latencies_ms: Latencies = dict) -> None:
        self._store, self._rank, self._latencies_ms = store, rank, latencies_ms
        self._plans = 0  # that were found
        self._next: tuple[int, Schedule] | None = None

    def report(self, iteration: int, spans: Sequence[Span]) -> None:
        """Tell the first rank what an iteration took here. Raises PeerLost where that rank is gone."""
        ways = [[LATENCY, *ends, ms] for ends, ms in self._latencies_ms().items()]
        value = json.dumps([iteration, summary(spans) + ways])
        self._store.set(_report_key(iteration, self._rank), value)

    def before(self, iteration: int) -> Schedule | None:
        """The schedule that holds from `iteration` on, where it is another; asked at its start.

        Raises
        ------
        PeerLost
            The store is gone, and with it the first rank.
        """
        if self._next is None:
            self._next = self._announced(iteration)
        if self._next is None or iteration < self._next[0]:
            return None
        schedule, self._next = self._next[1], None
        return schedule

    @property
    def adaptations(self) -> list[dict[str, Any]]:
        """The part of the result about re-planning; on the first rank."""
        return []

    def _announced(self, iteration: int) -> tuple[int, Schedule] | None:
        key = f"adapt/plan/{self._plans}"
        if not self._store.check([key]):
            return None
        self._plans += 1
        begins, text = json.loads(self._store.get(key))
        return begins, parse_schedule(text)


class Leader(Follower):
    """The first rank, which also judges and decides.

    Parameters
    ----------
    schedule : that the run begins with.
    emit : takes the `adapted` events.
    """

    def __init__(
        self,
        store: Store,
        *,
        rank: int,
        ranks: Sequence[int],
        job: TrainJob,
        schedule: Schedule,
        emit: Emit,
        latencies_ms: Latencies = dict,
    ) -> None:
        super().__init__(store, rank=rank, latencies_ms=latencies_ms)
        assert job.failures.adapt is not None
        self._ranks, self._job, self._schedule, self._emit = tuple(ranks), job, schedule, emit
        self._settings = job.failures.adapt
        self._expected = planned(job.scenario, schedule)
        self._judge = self._new_judge()
        self._due: int | None = None  # the iteration of which the reports come next; None: none began yet
        self._verdict: Verdict | None = None  # that is being planned for
        self._planning: Future[ReplanResult] | None = None
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="replan")
        self._adaptations: list[dict[str, Any]] = []

    @property
    def adaptations(self) -> list[dict[str, Any]]:
        return self._adaptations

    def _announced(self, iteration: int) -> tuple[int, Schedule] | None:
        if self._planning is None:
            self._listen(iteration)
        if self._planning is None or not wait([self._planning], AT_ONCE_S).done:
            return None
        planning, self._planning = self._planning, None
        return self._decide(iteration, planning)

    def _listen(self, iteration: int) -> None:
        """Judge the iterations of which all ranks have reported."""
        if self._due is None:
            self._due = iteration + WARM_UP
        self._due = max(self._due, iteration - SLOTS + 1)
        while self._due < iteration:
            reports = self._reports(self._due)
            if reports is None:
                return
            self._due += 1
            if verdict := self._judge.observe(slowest(rows for _, rows in reports)):
                self._plan(verdict)
                return

    def _reports(self, iteration: int) -> list[Any] | None:
        """(iteration, summary) of every rank; None while one has not reported."""
        keys = [_report_key(iteration, rank) for rank in self._ranks]
        if not self._store.check(keys):
            return None
        reports = [json.loads(text) for text in self._store.multi_get(keys)]
        return None if any(number < iteration for number, _ in reports) else reports

    def _plan(self, verdict: Verdict) -> None:
        expected, measured = dict(self._expected), {**self._expected, **verdict.measured}
        self._verdict = verdict
        self._planning = self._planner.submit(replan, self._job, self._schedule, expected, measured)

    def _decide(self, iteration: int, planning: Future[ReplanResult]) -> tuple[int, Schedule] | None:
        assert self._verdict is not None
        self._due = iteration  # what was measured before is known, or from before a search
        try:
            result = planning.result()
        except (InputError, DeadlockError) as error:
            log.warning("No plan for the measured times: %s.", error)
            self._expected |= self._verdict.measured
            self._judge.expect(self._expected)
            return None
        self._expected = dict(result.expected)
        if result.schedule is None:
            if abs(result.before_s / result.planned_s - 1) > self._settings.deviation:
                self._publish(iteration, result)
            self._judge.expect(self._expected)
            return None
        begins = iteration + 1
        self._store.set(f"adapt/plan/{self._plans}", json.dumps([begins, str(result.schedule)]))
        self._plans += 1
        self._publish(begins, result)
        self._schedule = result.schedule
        self._judge = self._new_judge()
        return begins, result.schedule

    def _new_judge(self) -> Judge:
        settings = self._settings
        return Judge(self._expected, limit=settings.deviation, iterations=settings.iterations)

    def _publish(self, iteration: int, result: ReplanResult) -> None:
        assert self._verdict is not None
        event = Adapted(
            rank=self._rank,
            iteration=iteration,
            replanned=result.schedule is not None,
            policy=result.policy,
            deviations=tuple(deviation.reported() for deviation in self._verdict.deviations),
            planned_s=round(result.planned_s, 6),
            before_s=round(result.before_s, 6),
            after_s=round(result.after_s, 6),
            schedule=str(result.schedule or self._schedule),
            times=as_rows(result.expected),
            t=time.time(),
        )
        self._adaptations.append(event.model_dump(mode="json", exclude={"kind", "rank"}))
        log.info(
            "Measured times differ from the plan: %s from iteration %s, %.3f s an iteration planned.",
            f"new schedule ({result.policy})" if result.schedule else "the schedule stays",
            f"{iteration:,}",
            result.planned_s,
        )
        self._emit(event)


def _report_key(iteration: int, rank: int) -> str:
    return f"adapt/report/{iteration % SLOTS}/{rank}"
