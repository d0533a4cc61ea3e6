"""Static orders: every GPU's ops are listed beforehand, whatever the links do.

Most of these orders alternate one forward and one backward in a steady state. One key per op describes them.
With w forwards before the first backward, F number i has key 3 (i − w) and B number i has key 3 i + 1. W
number i, delayed by d turns, has key 3 (i + d) + 2. Sorting by key gives warm-up, steady state and cool-down.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.errors import Infeasible
from engine.schedule import position_kernel as kernel
from engine.schedule.compiled import compiled
from engine.schedule.ir import NO_OP, OpKind, Schedule
from engine.schedule.position_loop import PositionLoop
from engine.schedule.rules import GATES
from engine.schedule.scenario import RecomputeRule, Scenario
from engine.schedule.search import Built, Chosen, Frame, OneTraversal, Search
from engine.schedule.traversal import Traversal

Codes = NDArray[np.int32]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Static(OneTraversal):
    """A policy that lists each GPU's ops beforehand, without R.

    orders : returns, for a scenario and its traversal, codes of shape (stages, longest), padded with −1,
        within both limits; or why there are none.
    recompute : the rule of its R, each of which comes right before its B.
    """

    orders: Callable[[Scenario, Traversal], Codes | Infeasible]
    recompute: RecomputeRule = "late"

    def build(self, scenario: Scenario, search: Search) -> Built | Infeasible:
        """The listed order. Only the order of pipelines on a shared link depends on arrivals."""
        (frame,) = self.frames(scenario)
        orders = self.orders(scenario, frame.traversal)
        if isinstance(orders, Infeasible):
            return orders
        rule = scenario.recompute_rule or self.recompute
        orders = with_recompute(orders, scenario.per_stage("recompute") > 0)
        schedule = _schedule(scenario, frame, orders, rule)
        chosen = Chosen(
            policy=scenario.policy,
            traversal=frame.traversal.name,
            sharing=frame.sharing,
            chunks=frame.traversal.chunks,
            contention=scenario.contention or "rank",
            recompute_rule=rule,
        )
        return Built(schedule=schedule, chosen=chosen)


def _schedule(scenario: Scenario, frame: Frame, orders: Codes, rule: RecomputeRule) -> Schedule:
    if frame.sharing == "spatial" or scenario.pipelines == 1:
        ops = np.broadcast_to(orders, (scenario.pipelines, *orders.shape)).copy()
        return Schedule(
            microbatches=scenario.microbatches,
            traversal=frame.traversal,
            ops=ops,
            sharing=frame.sharing,
            link_order={},
            recompute_gate=GATES[rule],
        )
    split = bool(np.any((orders != NO_OP) & ((orders & 3) == OpKind.W)))
    loop = PositionLoop.of(scenario, frame, split=split, rule=rule, contention=scenario.contention or "rank")
    # Every chunk of every stage goes back in one order of microbatches.
    codes = orders[0]
    first = codes[((codes & 3) == OpKind.B) & (codes < 4 * scenario.microbatches)]
    cell = loop.cell._replace(fixed=True, backwards=(first // 4).astype(np.int64))
    state = loop.state(orders)
    kernel.run(cell, state)
    return loop.schedule(state)


def sorted_by_turn(
    forwards: Codes | Ints, backwards: Codes | Ints, warm_up: Ints, put_off: Ints | None
) -> Codes:
    """The one-forward-one-backward order of each stage.

    forwards, backwards : codes of all F and all B of a stage in their order, shape (ops,), the same for all.
    warm_up : forwards before the first turn of one F and one B, shape (stages,).
    put_off : turns by which W follows its B, shape (stages,); None if B is whole.
    """
    i = np.arange(len(forwards))
    keys = [3 * (i - warm_up[:, None]), np.broadcast_to(3 * i + 1, (len(warm_up), len(i)))]
    codes = [forwards, backwards]
    if put_off is not None:
        keys.append(3 * (i + put_off[:, None]) + 2)
        codes.append(backwards + (OpKind.W - OpKind.B))
    order = np.argsort(np.concatenate(keys, axis=1), axis=1, kind="stable")
    return np.concatenate(codes).astype(np.int32)[order]


def peak(orders: Codes, last: OpKind) -> Ints:
    """Most chunks that each stage holds at once, shape (stages,); `last` is the kind that frees them."""
    kinds = np.where(orders == NO_OP, NO_OP, orders & 3)
    held = np.cumsum(kinds == OpKind.F, axis=1) - np.cumsum(kinds == last, axis=1)
    return np.asarray(np.max(held, axis=1))


def allowed(limits: Ints, stage: int) -> str:
    """A phrase that says how many microbatches a stage may hold."""
    where = "" if np.ptp(limits) == 0 else f" on stage {stage}"
    return f"{limits[stage]} allowed{where}"


def in_sub_blocks(orders: Codes, chunks: int, microbatches: int) -> Codes:
    """Orders of whole stages with each op cut into sub-blocks: F in order, B and W in reverse; without R."""
    result = np.full((len(orders), orders.shape[1] * chunks), NO_OP, dtype=np.int32)
    for s, order in enumerate(orders):
        codes = order[(order != NO_OP) & ((order & 3) != OpKind.R)]
        block = np.arange(chunks)
        blocks = np.where((codes & 3)[:, None] == OpKind.F, block, block[::-1])
        cut = codes[:, None] + blocks * (4 * microbatches)
        result[s, : cut.size] = cut.reshape(-1)
    return result


def with_recompute(orders: Codes, recomputes: NDArray[np.bool_]) -> Codes:
    """Puts an R before each B that does not directly follow its own F, on the stages that recompute."""
    if not recomputes.any():
        return orders
    backwards = int(np.max(np.count_nonzero((orders != NO_OP) & ((orders & 3) == OpKind.B), axis=1)))
    result = np.full((len(orders), orders.shape[1] + backwards), NO_OP, dtype=np.int32)
    _insert_recompute(np.ascontiguousarray(orders), recomputes, result)
    return result


@compiled
def _insert_recompute(orders, recomputes, result):
    for s in range(len(orders)):
        at = 0
        before = -1
        for code in orders[s]:
            if code < 0:
                break
            if recomputes[s] and code & 3 == 2 and before != code - 2:
                result[s, at] = code - 1
                at += 1
            result[s, at] = code
            at += 1
            before = code
