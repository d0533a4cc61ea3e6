"""From rules and a scenario to a Schedule: prepares the compiled event loop and reads its result."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from engine.errors import InputError
from engine.schedule import greedy_kernel as kernel
from engine.schedule.ir import NO_OP, Schedule
from engine.schedule.rules import GATES, Gate, Rules, Tie
from engine.schedule.scenario import Scenario
from engine.schedule.search import Built, Chosen, Frame, Search
from engine.schedule.traversal import straight
from engine.schedule.wake_tree import set_wake, sleeping


@dataclass(frozen=True, slots=True)
class Greedy:
    """A policy given by rules for the event loop, one op at a time; it never looks ahead."""

    rules: Callable[[Scenario], Rules]

    def frames(self, scenario: Scenario) -> tuple[Frame, ...]:
        """The straight traversal and one sharing.

        Raises InputError if the scenario asks for chunks or another traversal.
        """
        if scenario.chunks not in (None, 1):
            raise InputError("chunks", scenario.chunks, f"{scenario.policy} runs every stage whole: 1")
        if scenario.traversal not in (None, "straight"):
            raise InputError("traversal", scenario.traversal, f"{scenario.policy} goes straight")
        return (Frame(traversal=straight(scenario.stages), sharing=self.rules(scenario).sharing),)

    def build(self, scenario: Scenario, search: Search) -> Built:
        """The schedule that the rules give."""
        rules = self.rules(scenario)
        schedule = list_schedule(scenario, rules)
        chosen = Chosen(
            policy=scenario.policy,
            traversal="straight",
            sharing=rules.sharing,
            contention=rules.contention,
            recompute_rule=rules.recompute,
        )
        return Built(schedule=schedule, chosen=chosen)


def list_schedule(scenario: Scenario, rules: Rules) -> Schedule:
    """Return the order of ops and transfers that `rules` give for `scenario`."""
    cell = _cell(scenario, rules)
    state = _state(cell)
    kernel.run(cell, state)
    return _schedule(scenario, rules, state)


def _cell(scenario: Scenario, rules: Rules) -> kernel.Cell:
    wan = scenario.hop_is_wan[:-1]
    shared = wan & (rules.sharing == "temporal" and scenario.pipelines > 1)
    forward = scenario.per_stage("forward")
    backward = scenario.per_stage("backward") + scenario.per_stage("weight")
    recompute = scenario.per_stage("recompute")
    return kernel.Cell(
        pipelines=scenario.pipelines if shared.any() else 1,
        microbatches=scenario.microbatches,
        forward=forward,
        recompute=recompute,
        backward=backward,
        transfer_time=scenario.hop_times(rules.sharing)[:-1],
        latency=scenario.hop_delays(rules.sharing)[:-1],
        shared=shared,
        held=wan & rules.hold_for_link,
        in_flight=rules.in_flight,
        rule=int(Gate[rules.recompute.upper()]),
        tie=int(Tie[rules.contention.replace("-", "_").upper()]),
        instant=kernel.SAME_INSTANT * float(max(forward.max(), backward.max(), recompute.max())),
    )


def _state(cell: kernel.Cell) -> kernel.State:
    n, stages, microbatches = cell.pipelines, len(cell.forward), cell.microbatches
    kinds = 3 if cell.recompute.any() else 2
    hops = stages - 1
    activation = np.full((n, stages, microbatches), np.inf)
    activation[:, 0] = 0.0
    wake = sleeping(stages)
    set_wake(wake, 0, 0.0)
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
        traversal=straight(scenario.stages),
        ops=order,
        sharing=rules.sharing,
        link_order=link_order,
        recompute_gate=GATES[rules.recompute],
    )
