"""The answer of `meridian analyze`: where the time of a measured run went."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.analyze.formats import Loaded
from engine.analyze.graph import Graph
from engine.analyze.idle import Idle, idle_of
from engine.analyze.replay import Replay
from engine.analyze.trace import JOINED, KINDS, Floats, Trace

# The share of workers that "Understanding Stragglers …" (section 4.1) calls the slowest.
SLOWEST_PERCENT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What some workers add to the step: the paper's M_W and M_S.

    with_only_s : the ideal step with these as measured.  without_s : the measured one with these made ideal.
    """

    workers: tuple[tuple[int, int], ...]
    with_only_s: float
    without_s: float
    slow_s: float
    ideal_s: float

    def as_dict(self) -> dict[str, Any]:
        """Shares are of the time that a step is longer than ideal; null where it is not longer."""
        lost = self.slow_s - self.ideal_s
        return {
            "workers": [f"{replica},{stage}" for replica, stage in self.workers],
            "with_only_s": self.with_only_s,
            "without_s": self.without_s,
            "added": (self.with_only_s - self.ideal_s) / lost if lost else None,
            "explained": (self.slow_s - self.without_s) / lost if lost else None,
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slowdowns:
    """Replays of a trace, each step on its own, in seconds, shape (steps,).

    by_op, by_stage, by_replica : ideal but for these, which are as measured.
    """

    graph: Graph
    no_delay: Floats
    ideal: Floats
    by_op: dict[str, Floats]
    by_stage: dict[int, Floats]
    by_replica: dict[int, Floats]
    slowest: Part
    last_stage: Part
    critical_path: list[dict[str, Any]]

    def over_ideal(self, times: Floats) -> float:
        """Mean step over the mean ideal step."""
        return float(times.mean() / self.ideal.mean())

    def by_worker(self) -> dict[str, float]:
        """Of each worker, the least of its replica's and its stage's."""
        return {
            f"{replica},{stage}": min(self.over_ideal(row), self.over_ideal(column))
            for replica, row in self.by_replica.items()
            for stage, column in self.by_stage.items()
        }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Analysis:
    """A trace and what it says; `slowdowns` is None where its format does not tell what waits for what."""

    trace: Trace
    idle: Idle
    slowdowns: Slowdowns | None
    notes: tuple[str, ...]
    has_launch_delays: bool = True

    def as_dict(self) -> dict[str, Any]:
        """The output of `meridian analyze`, as docs/dev/contracts.md names its fields."""
        layout, idle = self.trace.layout, self.idle
        return {
            "format": self.trace.format,
            "workers": layout.workers,
            "steps": len(idle.steps),
            "layout": {
                "replicas": layout.replicas,
                "stages": layout.stages,
                "chunks": layout.chunks,
                "gpus": layout.gpus,
            },
            "ops": len(self.trace),
            "step_s": float(idle.step_s.mean()),
            **self._replayed(),
            "utilization": idle.utilization(),
            "bubbles": {"fraction": 1 - idle.utilization(), "total_s": idle.bubbles_s()},
            "utilization_by_worker": {
                f"{replica},{stage}": float(idle.by_worker()[replica, stage])
                for replica, stage in np.ndindex(idle.busy_s.shape)
            },
            "notes": list(self.notes),
        }

    def _replayed(self) -> dict[str, Any]:
        s = self.slowdowns
        names = (
            "no_delay_step_s",
            "ideal_step_s",
            "slowdown",
            "launch_slowdown",
            "slowdown_by_op",
            "slowdown_by_stage",
            "slowdown_by_replica",
            "slowdown_by_worker",
            "slowest_workers",
            "last_stage",
            "critical_path",
            "by_step",
        )
        if s is None:
            return dict.fromkeys(names)
        included = np.isin(self.idle.steps, s.graph.steps)
        measured = self.idle.step_s[included]
        return {
            "no_delay_step_s": float(s.no_delay.mean()),
            "ideal_step_s": float(s.ideal.mean()),
            "slowdown": s.over_ideal(s.no_delay),
            "launch_slowdown": float(measured.mean() / s.no_delay.mean()) if self.has_launch_delays else None,
            "slowdown_by_op": {name: s.over_ideal(times) for name, times in s.by_op.items()},
            "slowdown_by_stage": {str(stage): s.over_ideal(times) for stage, times in s.by_stage.items()},
            "slowdown_by_replica": {str(r): s.over_ideal(times) for r, times in s.by_replica.items()},
            "slowdown_by_worker": s.by_worker(),
            "slowest_workers": s.slowest.as_dict(),
            "last_stage": s.last_stage.as_dict(),
            "critical_path": s.critical_path,
            "by_step": list(self._by_step(measured, s)),
        }

    def _by_step(self, measured: Floats, s: Slowdowns) -> Iterator[dict[str, Any]]:
        for at, step in enumerate(s.graph.steps.tolist()):

            def over(times: Floats, at: int = at) -> float:
                return float(times[at] / s.ideal[at])

            yield {
                "step": step,
                "step_s": float(measured[at]),
                "no_delay_step_s": float(s.no_delay[at]),
                "ideal_step_s": float(s.ideal[at]),
                "slowdown_by_op": {name: over(times) for name, times in s.by_op.items()},
                "slowdown_by_stage": {str(stage): over(times) for stage, times in s.by_stage.items()},
                "slowdown_by_replica": {str(replica): over(times) for replica, times in s.by_replica.items()},
            }


def analyze(loaded: Loaded) -> Analysis:
    """What a trace says.

    Raises
    ------
    InputError
        The ops of the trace wait for each other.
    """
    trace, graph = loaded.trace, loaded.graph
    return Analysis(
        trace=trace,
        idle=idle_of(trace),
        slowdowns=_slowdowns(graph) if graph else None,
        notes=(*trace.notes, *(graph.notes if graph else ())),
        has_launch_delays=loaded.has_launch_delays,
    )


def _slowdowns(graph: Graph) -> Slowdowns:
    replay = Replay(graph)
    everything = np.ones(len(graph.rows), dtype=np.bool_)
    no_delay, ideal = replay.step_times(everything), replay.step_times(~everything)
    by_stage = {s: replay.step_times(graph.stage == s) for s in np.unique(graph.stage).tolist()}
    by_replica = {r: replay.step_times(graph.replica == r) for r in np.unique(graph.replica).tolist()}
    scores = {
        (replica, stage): min(row.mean(), column.mean())
        for replica, row in by_replica.items()
        for stage, column in by_stage.items()
    }
    count = -(-len(scores) * SLOWEST_PERCENT // 100)
    slowest = tuple(sorted(scores, key=lambda worker: (-scores[worker], worker))[:count])
    last = tuple((replica, max(by_stage)) for replica in by_replica)
    return Slowdowns(
        graph=graph,
        no_delay=no_delay,
        ideal=ideal,
        by_op=_by_op(replay),
        by_stage=by_stage,
        by_replica=by_replica,
        slowest=_part(replay, slowest, no_delay, ideal),
        last_stage=_part(replay, last, no_delay, ideal),
        critical_path=_critical_path(replay, int(np.argsort(no_delay)[(len(no_delay) - 1) // 2])),
    )


def _by_op(replay: Replay) -> dict[str, Floats]:
    names = np.array([JOINED.get(name, name) for name in KINDS])
    of_node = names[replay.graph.kind]
    return {name: replay.step_times(of_node == name) for name in np.unique(of_node).tolist()}


def _part(replay: Replay, workers: tuple[tuple[int, int], ...], no_delay: Floats, ideal: Floats) -> Part:
    graph = replay.graph
    theirs: NDArray[np.bool_] = np.zeros(len(graph.rows), dtype=np.bool_)
    for replica, stage in workers:
        theirs |= (graph.replica == replica) & (graph.stage == stage)
    return Part(
        workers=workers,
        with_only_s=float(replay.step_times(theirs).mean()),
        without_s=float(replay.step_times(~theirs).mean()),
        slow_s=float(no_delay.mean()),
        ideal_s=float(ideal.mean()),
    )


def _critical_path(replay: Replay, step: int) -> list[dict[str, Any]]:
    """The longest chain of one step, as runs of ops of one kind on one worker."""
    graph = replay.graph
    kind, replica, stage = graph.kind, graph.replica, graph.stage
    path = replay.critical_path(step)
    end = replay.times(np.ones(len(graph.rows), dtype=np.bool_))[1][:, step]
    runs: list[dict[str, Any]] = []
    begin = 0.0
    for node in path:
        what = {"op": KINDS[kind[node]], "replica": int(replica[node]), "stage": int(stage[node])}
        if runs and all(runs[-1][name] == value for name, value in what.items()):
            runs[-1]["ops"] += 1
            runs[-1]["end_s"] = float(end[node])
        else:
            runs.append(
                {
                    "step": int(graph.steps[step]),
                    **what,
                    "ops": 1,
                    "start_s": begin,
                    "end_s": float(end[node]),
                }
            )
        begin = float(end[node])
    return runs
