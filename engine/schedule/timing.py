"""Times each op and transfer of a Schedule, each as early as its order allows."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.schedule import timing_kernel as kernel
from engine.schedule.grid import order_grid
from engine.schedule.ir import NO_OP, OpKind, Schedule
from engine.schedule.scenario import Scenario

_GATES = {"none": kernel.GATE_NONE, "jit": kernel.GATE_JIT, "late": kernel.GATE_LATE}
_NONE = np.zeros((0, 0, 0))

Floats = NDArray[np.float64]


class DeadlockError(RuntimeError):
    """The ops of a Schedule wait for each other; the message shows the next op of each GPU."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Jitter:
    """Factors by which single ops and transfers take longer or shorter than planned.

    ops : shape as `Schedule.ops`.  transfers : shape (2, L − 1, pipelines, microbatches) as `Timing`.
    """

    ops: Floats
    transfers: Floats


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Timing:
    """Start and end of every op and transfer of a Schedule, in the scenario's time unit; NaN elsewhere.

    op_start, op_end : as `Schedule.ops`, shape (pipelines, stages, longest).
    transfer_start, transfer_end : shape (2, L − 1, pipelines, microbatches): [0, v] the activations that
        cross edge v of the traversal, [1, v] the gradients that cross it back. NaN within a stage.
    """

    op_start: Floats
    op_end: Floats
    transfer_start: Floats
    transfer_end: Floats

    @property
    def makespan(self) -> float:
        """End of the last op."""
        return float(np.nanmax(self.op_end))


def time_ops(scenario: Scenario, schedule: Schedule, jitter: Jitter | None = None) -> Timing:
    """Return when each op and transfer of `schedule` runs, each as early as its order allows.

    An op starts as soon as its GPU is free, its inputs have arrived and its recompute gate is open. A link
    sends in the order of the Schedule, or of the producing ops if it is not listed. If the scenario's sends
    block, a GPU is free once the message that its last op sent to another stage has arrived there; receives
    are posted ahead.

    Raises
    ------
    ValueError
        The schedule is for another shape of cell than the scenario.
    DeadlockError
        Ops wait for each other; the message is a grid of the orders that marks the next op of each GPU.
    """
    _check_shape(scenario, schedule)
    case = _case(scenario, schedule, jitter)
    clock = _clock(case)
    kernel.run(case, clock)
    if int(clock.at.sum()) < int(np.count_nonzero(schedule.ops != NO_OP)):
        raise DeadlockError(
            "the schedule waits for itself at the ops in brackets\n" + order_grid(schedule, clock.at)
        )
    edges = len(case.stage_of) - 1
    shape = (2, edges, schedule.pipelines, schedule.microbatches)
    return Timing(
        op_start=clock.op_start,
        op_end=clock.op_end,
        transfer_start=clock.sent_start.reshape(shape),
        transfer_end=clock.sent_end.reshape(shape),
    )


def _check_shape(scenario: Scenario, schedule: Schedule) -> None:
    expected = (scenario.pipelines, scenario.stages, scenario.microbatches)
    actual = (schedule.pipelines, schedule.stages, schedule.microbatches)
    if expected != actual:
        raise ValueError(f"pipelines, stages, microbatches: scenario has {expected}, schedule {actual}")
    for hop in np.flatnonzero(scenario.shared_hops(schedule.sharing)).tolist():
        for link in ((hop, hop + 1), (hop + 1, hop)):
            if hop in schedule.traversal.hop_of and link not in schedule.link_order:
                raise ValueError(f"link {link[0]}>{link[1]}: is shared, so its order must be listed")


def durations(scenario: Scenario, chunks: int, *, split: bool) -> Floats:
    """Duration of each kind of op of one chunk on each stage, shape (4, stages); B whole unless `split`."""
    forward, recompute = scenario.per_stage("forward"), scenario.per_stage("recompute")
    backward, weight = scenario.per_stage("backward"), scenario.per_stage("weight")
    if not split:
        backward = backward + weight
    return np.stack([forward, recompute, backward, weight]) / chunks


def _case(scenario: Scenario, schedule: Schedule, jitter: Jitter | None) -> kernel.Case:
    traversal = schedule.traversal
    queues = _Queues(schedule, scenario.shared_hops(schedule.sharing))
    return kernel.Case(
        microbatches=schedule.microbatches,
        chunks=schedule.chunks,
        durations=durations(scenario, schedule.chunks, split=schedule.has(OpKind.W)),
        jitter=jitter.ops if jitter else _NONE,
        transfer_time=scenario.hop_times(schedule.sharing),
        latency=scenario.hop_delays(schedule.sharing),
        transfer_jitter=jitter.transfers.reshape(-1, *jitter.transfers.shape[2:]) if jitter else _NONE,
        stage_of=traversal.stage_of,
        position_of=traversal.position_of,
        link_of=traversal.link_of,
        transfer_of=traversal.transfer_of,
        ops=np.ascontiguousarray(schedule.ops, dtype=np.int32),
        queue_of=queues.of,
        queue_link=np.array(queues.link, dtype=np.int64),
        queue_owner=np.array(queues.owner, dtype=np.int64),
        queue_begin=np.cumsum([0, *map(len, queues.sent)]).astype(np.int64),
        sent=np.concatenate(queues.sent).astype(np.int32) if queues.sent else np.zeros(0, dtype=np.int32),
        gate=_GATES[schedule.recompute_gate],
        sends_block=scenario.sends == "blocking",
    )


class _Queues:
    """The listed links as queues: one for a shared link, one per pipeline otherwise."""

    def __init__(self, schedule: Schedule, shared: NDArray[np.bool_]) -> None:
        hops, pipelines = schedule.stages, schedule.pipelines
        self.of = np.full((2 * hops, pipelines), -1, dtype=np.int64)
        self.link: list[int] = []
        self.owner: list[int] = []
        self.sent: list[NDArray[np.int32]] = []
        per_pipeline = schedule.chunks * schedule.microbatches
        for (sender, receiver), codes in schedule.link_order.items():
            hop = min(sender, receiver)
            link = int(sender > receiver) * hops + hop
            if shared[hop]:
                self._add(link, 0, slice(None), codes)
                continue
            for k in range(pipelines):
                self._add(link, k, slice(k, k + 1), codes[codes // per_pipeline == k])

    def _add(self, link: int, owner: int, users: slice, codes: NDArray[np.int32]) -> None:
        self.of[link, users] = len(self.link)
        self.link.append(link)
        self.owner.append(owner)
        self.sent.append(codes)


def _clock(case: kernel.Case) -> kernel.Clock:
    n, stages, _ = case.ops.shape
    transfers = (len(case.link_of), n, case.microbatches)
    positions = (n, len(case.stage_of), case.microbatches)
    actors = n * stages + len(case.queue_link)
    return kernel.Clock(
        op_start=np.full(case.ops.shape, kernel.UNKNOWN),
        op_end=np.full(case.ops.shape, kernel.UNKNOWN),
        sent_start=np.full(transfers, kernel.UNKNOWN),
        sent_end=np.full(transfers, kernel.UNKNOWN),
        produced_at=np.full(transfers if len(case.queue_link) else (0, 0, 0), kernel.UNKNOWN),
        backward_start=np.full(positions, kernel.UNKNOWN),
        backward_end=np.full(positions, kernel.UNKNOWN),
        forward_end=np.full(positions, kernel.UNKNOWN),
        at=np.zeros((n, stages), dtype=np.int64),
        free=np.zeros((n, stages)),
        sending=np.full((n, stages), kernel.NOTHING, dtype=np.int64),
        queue_at=case.queue_begin[:-1].copy(),
        link_free=np.zeros((2 * stages, n)),
        stack=np.zeros(actors, dtype=np.int64),
        top=np.zeros(1, dtype=np.int64),
        stacked=np.zeros(actors, dtype=np.bool_),
    )
