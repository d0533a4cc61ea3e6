"""What would happen? Gives every op and transfer of a Schedule its time."""

import numpy as np

from engine.schedule.ir import NO_OP, OpKind, Schedule
from engine.schedule.scenario import Scenario
from engine.simulate import timing_kernel as kernel
from engine.simulate.grid import order_grid
from engine.simulate.timeline import Timeline

_GATES = {"none": kernel.GATE_NONE, "jit": kernel.GATE_JIT, "late": kernel.GATE_LATE}


class DeadlockError(RuntimeError):
    """The ops of a Schedule wait for each other; the message shows where each GPU stands."""


def time_schedule(scenario: Scenario, schedule: Schedule) -> Timeline:
    """Return when each op and transfer of `schedule` runs, each as early as its order allows.

    An op starts as soon as its GPU is free, its inputs have arrived and its recompute gate is open; a link
    sends in the order of the Schedule (of the producing ops, where it belongs to one pipeline).

    Raises
    ------
    ValueError
        The schedule is for another shape of cell than the scenario.
    DeadlockError
        Ops wait for each other; the message is a grid of the orders with the spots marked.
    """
    _check_shape(scenario, schedule)
    case = _case(scenario, schedule)
    clock = _clock(case)
    timed = kernel.run(case, clock)
    if timed < int(np.count_nonzero(schedule.ops != NO_OP)):
        raise DeadlockError(
            "the schedule waits for itself at the ops in brackets\n" + order_grid(schedule, clock.at)
        )
    return Timeline(
        schedule=schedule,
        op_start=clock.op_start,
        op_end=clock.op_end,
        transfer_start=clock.sent_start,
        transfer_end=clock.sent_end,
        latency=case.latency,
        wan_hops=scenario.wan_hops,
        lan_is_free=scenario.lan.latency == 0 and scenario.lan.transfer == 0,
    )


def _check_shape(scenario: Scenario, schedule: Schedule) -> None:
    asked = (scenario.pipelines, scenario.stages, scenario.microbatches)
    given = (schedule.pipelines, schedule.stages, schedule.microbatches)
    if asked != given:
        raise ValueError(f"pipelines, stages, microbatches: scenario has {asked}, schedule {given}")
    if schedule.chunks != 1:
        raise ValueError(f"chunks: {schedule.chunks}: the simulator times whole stages only")


def _case(scenario: Scenario, schedule: Schedule) -> kernel.Case:
    n, stages, microbatches = schedule.pipelines, schedule.stages, schedule.microbatches
    shared = np.zeros(stages - 1, dtype=np.bool_)
    sent = np.zeros((2, stages - 1, n * microbatches), dtype=np.int32)
    for (sender, receiver), order in schedule.link_order.items():
        hop = min(sender, receiver)
        shared[hop] = True
        sent[int(sender > receiver), hop] = order
    backward, weight = scenario.per_stage("backward"), scenario.per_stage("weight")
    if not schedule.has(OpKind.W):
        backward = backward + weight
    forward, recompute = scenario.per_stage("forward"), scenario.per_stage("recompute")
    return kernel.Case(
        microbatches=microbatches,
        durations=np.stack([forward, recompute, backward, weight]),
        transfer=scenario.hop_transfer / np.where(shared, n, 1),
        latency=scenario.hop_latency,
        shared=shared,
        ops=np.ascontiguousarray(schedule.ops, dtype=np.int32),
        sent=sent,
        gate=_GATES[schedule.recompute_gate],
    )


def _clock(case: kernel.Case) -> kernel.Clock:
    n, stages, _ = case.ops.shape
    transfers = (2, n, stages - 1, case.microbatches)
    actors = n * stages + 2 * (stages - 1)
    return kernel.Clock(
        op_start=np.full(case.ops.shape, kernel.UNKNOWN),
        op_end=np.full(case.ops.shape, kernel.UNKNOWN),
        sent_start=np.full(transfers, kernel.UNKNOWN),
        sent_end=np.full(transfers, kernel.UNKNOWN),
        made=np.full(transfers, kernel.UNKNOWN),
        backward_start=np.full((n, stages, case.microbatches), kernel.UNKNOWN),
        forward_end=np.full((n, stages, case.microbatches), kernel.UNKNOWN),
        at=np.zeros((n, stages), dtype=np.int64),
        free=np.zeros((n, stages)),
        link_at=np.zeros((2, stages - 1), dtype=np.int64),
        link_free=np.zeros((2, n, stages - 1)),
        stack=np.zeros(actors, dtype=np.int64),
        top=np.zeros(1, dtype=np.int64),
        stacked=np.zeros(actors, dtype=np.bool_),
    )
