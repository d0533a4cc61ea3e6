"""From rules and a scenario to a Schedule: prepares the compiled event loop and reads its result."""

import numpy as np

from engine.errors import Infeasible
from engine.schedule import greedy_kernel as kernel
from engine.schedule.ir import NO_OP, RecomputeGate, Schedule
from engine.schedule.rules import Gate, Rules, Tie
from engine.schedule.scenario import RecomputeRule, Scenario

GATES: dict[RecomputeRule, RecomputeGate] = {"jit": "jit", "blocking": "jit", "late": "late", "idle": "none"}


def list_schedule(scenario: Scenario, rules: Rules) -> Schedule | Infeasible:
    """Return the order of ops and transfers that `rules` lead to on `scenario`."""
    if rules.forwards_first and min(rules.in_flight) < scenario.microbatches:
        held, most = scenario.microbatches, scenario.memory_limit
        return Infeasible(
            reason=f"memory_limit: every forward runs before the first backward, so a stage holds all {held} "
            f"microbatches at once; {most} allowed"
        )
    cell = _cell(scenario, rules)
    state = _state(cell)
    kernel.run(cell, state)
    return _schedule(scenario, rules, state)


def _cell(scenario: Scenario, rules: Rules) -> kernel.Cell:
    shared = np.zeros(scenario.stages - 1, dtype=np.bool_)
    wan = np.array(scenario.wan_hops, dtype=np.int64)
    if rules.sharing == "temporal" and scenario.pipelines > 1:
        shared[wan] = True
    held = np.zeros_like(shared)
    held[wan] = rules.hold_for_link
    forward = scenario.per_stage("forward")
    backward = scenario.per_stage("backward") + scenario.per_stage("weight")
    recompute = scenario.per_stage("recompute")
    return kernel.Cell(
        pipelines=scenario.pipelines if shared.any() else 1,
        microbatches=scenario.microbatches,
        forward=forward,
        recompute=recompute,
        backward=backward,
        transfer=scenario.hop_transfer / np.where(shared, scenario.pipelines, 1),
        latency=scenario.hop_latency,
        shared=shared,
        held=held,
        in_flight=np.array(rules.in_flight, dtype=np.int64),
        rule=int(Gate[rules.recompute.upper()]),
        tie=int(Tie[rules.contention.replace("-", "_").upper()]),
        forwards_first=rules.forwards_first,
        instant=kernel.SAME_INSTANT * float(max(forward.max(), backward.max(), recompute.max())),
    )


def _state(cell: kernel.Cell) -> kernel.State:
    n, stages, microbatches = cell.pipelines, len(cell.forward), cell.microbatches
    kinds = 3 if cell.recompute.any() else 2
    hops = stages - 1
    activation = np.full((n, stages, microbatches), np.inf)
    activation[:, 0] = 0.0
    wake = np.full(stages, np.inf)
    wake[0] = 0.0
    return kernel.State(
        started=np.zeros((3, n, stages), dtype=np.int64),
        last=np.full((n, stages), NO_OP, dtype=np.int64),
        free=np.zeros((n, stages)),
        activation=activation,
        gradient=np.full((n, stages, microbatches), np.inf),
        link_free=np.zeros((2, n, hops)),
        link_last=np.full((2, hops), n - 1, dtype=np.int64),
        wake=wake,
        order=np.full((n, stages, kinds * microbatches), NO_OP, dtype=np.int32),
        length=np.zeros((n, stages), dtype=np.int64),
        sent=np.zeros((2, hops, n * microbatches), dtype=np.int32),
        sent_length=np.zeros((2, hops), dtype=np.int64),
    )


def _schedule(scenario: Scenario, rules: Rules, state: kernel.State) -> Schedule:
    order = state.order
    if len(order) < scenario.pipelines:
        # Pipelines with links of their own do not meet: each does what the one computed did.
        order = np.broadcast_to(order, (scenario.pipelines, *order.shape[1:])).copy()
    link_order = {}
    for hop in np.flatnonzero(state.sent_length[0]).tolist():
        link_order[hop, hop + 1] = state.sent[0, hop]
        link_order[hop + 1, hop] = state.sent[1, hop]
    return Schedule(
        microbatches=scenario.microbatches,
        chunks=1,
        ops=order,
        link_order=link_order,
        recompute_gate=GATES[rules.recompute],
    )
