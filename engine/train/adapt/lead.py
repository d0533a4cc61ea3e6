"""The first rank's side of re-planning: judges what all ranks reported, plans, and announces what changes.

A new schedule comes into force between two iterations (engine.train.adapt.follow). Another layout needs other
processes: the state is saved, the first rank's host is told, and all ranks start again from there.
"""

import json
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from engine.errors import InputError
from engine.job.adapt.better import better
from engine.job.adapt.judge import Judge, Verdict
from engine.job.adapt.layouts import FoundLayout, conditions_of, lapses_of
from engine.job.adapt.measured import Measured, as_rows, of_rows, planned, slowest
from engine.job.adapt.replan import LEAST_GAIN, ReplanResult, replan
from engine.job.events.base import Emit
from engine.job.events.incidents import Adapted, Cause, Deviation, LayoutChanged
from engine.job.launch import LaunchSpec, RankAssignment
from engine.job.recovery.layout import change
from engine.job.recovery.reserve import SharedReserve
from engine.schedule import Schedule
from engine.schedule.timing import DeadlockError
from engine.train.adapt.follow import SLOTS, Announced, Follower, Store, report_key

log = logging.getLogger(__name__)
WARM_UP = 2  # iterations that are not judged
# A greedy plan is there within milliseconds and can be announced at once; a search runs during training.
AT_ONCE_S = 0.1
Planned = tuple[ReplanResult, FoundLayout | None]
FASTER = "another layout is faster"


class Leader(Follower):
    """The first rank, which also judges and decides.

    Parameters
    ----------
    schedule : that the run, or this attempt of it, begins with.
    emit : takes the `adapted` and `layout_changed` events.
    reserve : the GPUs that the run holds and does not use, on machines that answer.
    clock : gives Unix time.
    """

    def __init__(
        self,
        store: Store,
        *,
        spec: LaunchSpec,
        schedule: Schedule,
        emit: Emit,
        reserve: SharedReserve | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(store, rank=spec.first_rank)
        self._spec, self._job, self._schedule, self._emit = spec, spec.job, schedule, emit
        assert spec.job.failures.adapt is not None
        self._settings = spec.job.failures.adapt
        self._expected = planned(spec.job.scenario, schedule)
        self._expected |= {name: ms for name, ms in of_rows(spec.times).items() if name in self._expected}
        self._judge = self._new_judge()
        self._due: int | None = None  # the iteration of which the reports come next; None: none began yet
        self._latest: Mapping[int, Measured] = {}  # by rank, of the iteration judged last
        self._verdict: Verdict | None = None  # that is being planned for, or there is another cause
        self._cause: Cause | None = None
        self._reserve, self._clock = reserve or SharedReserve(), clock
        self._lapses = lapses_of(spec, schedule)
        self._planning: Future[Planned] | None = None
        self._planner = ThreadPoolExecutor(1, thread_name_prefix="replan")
        self._adaptations: list[dict[str, Any]] = []
        self._start_s = 0.0
        self._checkpoint_s: Callable[[], float | None] = lambda: None
        self._moves = False

    @property
    def adaptations(self) -> list[dict[str, Any]]:
        return self._adaptations

    def started(self, start_s: float, checkpoint_s: Callable[[], float | None]) -> None:
        self._start_s, self._checkpoint_s = start_s, checkpoint_s

    def _announced(self, iteration: int) -> Announced | None:
        if self._moves:  # a checkpoint is being saved, with which this attempt ends
            return None
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
            self._latest = {rank: of_rows(rows) for rank, (_, rows) in reports.items()}
            verdict = self._judge.observe(slowest(rows for _, rows in reports.values()))
            measured = self._judge.medians
            cause = None if verdict or measured is None else self._other_cause()
            if (verdict or cause) and measured is not None:
                self._plan(verdict, cause, measured)
                return

    def _reports(self, iteration: int) -> dict[int, Any] | None:
        """(iteration, summary) of every rank; None while one has not reported."""
        keys = {a.rank: report_key(iteration, a.rank) for a in self._spec.ranks}
        if not self._store.check(list(keys.values())):
            return None
        texts = self._store.multi_get(list(keys.values()))
        reports = {rank: json.loads(text) for rank, text in zip(keys, texts, strict=True)}
        return None if any(number < iteration for number, _ in reports.values()) else reports

    def _other_cause(self) -> Cause | None:
        """Why to look for another layout although the times are as expected."""
        if not self._settings.layout:
            return None
        if {a.rank for a in self._reserve.read()} - self._reserve.considered():
            return Cause.RESERVE
        return Cause.FORGOTTEN if self._lapses and self._lapses[0] <= self._clock() else None

    def _plan(self, verdict: Verdict | None, cause: Cause | None, medians: Measured) -> None:
        expected, measured = dict(self._expected), {**self._expected, **medians}
        self._verdict, self._cause = verdict, cause
        reserve = self._reserve.read()
        self._reserve.consider(a.rank for a in (*self._spec.ranks, *reserve))
        self._lapses = [at for at in self._lapses if at > self._clock()]
        steps = self._job.optimizer.steps - (self._due or 0)
        self._planning = self._planner.submit(
            self._replanned, expected, measured, self._latest, reserve, steps
        )

    def _replanned(
        self,
        expected: Measured,
        measured: Measured,
        by_rank: Mapping[int, Measured],
        reserve: tuple[RankAssignment, ...],
        steps: int,
    ) -> Planned:
        """A schedule for the present layout, and a layout that is better even than with that schedule."""
        if not self._settings.layout:
            return replan(self._job, self._schedule, expected, measured), None
        conditions = conditions_of(self._spec, self._schedule, measured, by_rank, now=self._clock())
        result = replan(self._job, self._schedule, expected, measured, conditions.sums_s(self._job))
        than_s = result.after_s * (1 - LEAST_GAIN)
        return result, better(self._spec, conditions, than_s=than_s, steps=steps, reserve=reserve)

    def _decide(self, iteration: int, planning: Future[Planned]) -> Announced | None:
        self._due = iteration  # what was measured before is known, or from before a search
        try:
            result, layout = planning.result()
        except (InputError, DeadlockError) as error:
            log.warning("No plan for the measured times: %s.", error)
            if self._verdict is not None:
                self._expected |= self._verdict.measured
                self._judge.expect(self._expected)
            return None
        begins = iteration + 1
        if layout is not None and (move := self._worth(begins + 1, result, layout)) is not None:
            return self._move(begins, move)
        if self._verdict is None:  # only a layout was looked for
            return None
        self._expected = dict(result.expected)
        if result.schedule is None:
            if abs(result.before_s / result.planned_s - 1) > self._settings.deviation:
                self._publish(iteration, result)
            self._judge.expect(self._expected)
            return None
        self._announce(begins, str(result.schedule))
        self._publish(begins, result)
        self._schedule = result.schedule
        self._judge = self._new_judge()
        return begins, result.schedule

    def _worth(self, step: int, result: ReplanResult, layout: FoundLayout) -> LayoutChanged | None:
        """The move to a layout after `step` steps; None where it costs more than it still gains.

        A checkpoint is taken to last as long as a start before the run has saved one. GPUs that get another
        stage also wait for its state.
        """
        checkpoint_s = self._checkpoint_s()
        cost_s = self._start_s + (self._start_s if checkpoint_s is None else checkpoint_s) + layout.move_s
        gain_s = max(0, self._job.optimizer.steps - step) * (result.after_s - layout.iteration_s)
        if gain_s <= cost_s:
            log.info("Another layout would gain %.1f s over what is left, and cost %.1f s.", gain_s, cost_s)
            return None
        seconds = result.after_s, layout.iteration_s
        return LayoutChanged(
            rank=self._rank,
            iteration=step,
            deviations=self._deviations(),
            cause=self._cause,
            before_s=round(result.after_s, 6),
            after_s=round(layout.iteration_s, 6),
            gain_s=round(gain_s, 3),
            cost_s=round(cost_s, 3),
            times=layout.layout.times,
            conditions=layout.layout.conditions,
            t=time.time(),
            **change(self._spec, layout.layout.applied(self._spec), FASTER, seconds),
        )

    def _move(self, begins: int, move: LayoutChanged) -> Announced:
        """Have the state saved after iteration `begins`, and the host end this attempt once it is."""
        self._moves = True
        self._announce(begins, None)
        log.info("Another layout is faster: the run moves to it after iteration %s.", f"{move.iteration:,}")
        self._emit(move)
        return begins, None

    def _announce(self, begins: int, schedule: str | None) -> None:
        self._store.set(f"adapt/plan/{self._plans}", json.dumps([begins, schedule]))
        self._plans += 1

    def _new_judge(self) -> Judge:
        settings = self._settings
        return Judge(self._expected, limit=settings.deviation, iterations=settings.iterations)

    def _deviations(self) -> tuple[Deviation, ...]:
        return tuple(each.reported() for each in self._verdict.deviations) if self._verdict else ()

    def _publish(self, iteration: int, result: ReplanResult) -> None:
        event = Adapted(
            rank=self._rank,
            iteration=iteration,
            replanned=result.schedule is not None,
            policy=result.policy,
            deviations=self._deviations(),
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
