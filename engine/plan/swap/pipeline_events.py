"""Pipelines, op by op: hops share one link, or each has a link of its own in each direction.

A shared link models one throttled network card: it serves one transfer at a time, in the order in which they
become ready. The simulator has no such link. Nor has it PipeDream's schedule, which never flushes: its time
is the beat of its steady state.
"""

import heapq
from collections.abc import Sequence

from engine.plan.swap.layers import SubModel
from engine.plan.swap.partition import ROUNDING

# A run has this many mini-batches per stage; the beat is measured from its middle on, before it drains.
MINIBATCHES_PER_STAGE = 16

Op = tuple[str, int, int]  # F or B, stage, mini-batch


def gpipe_wall_s(
    parts: Sequence[SubModel], hops_s: Sequence[float], microbatches: int, *, shared: bool
) -> float:
    """Wall seconds per mini-batch of GPipe: one flush of `microbatches`."""
    run = _Run(parts, hops_s, _gpipe(len(parts), microbatches), shared)
    return run.done() / microbatches


def pipedream_wall_s(parts: Sequence[SubModel], hops_s: Sequence[float], *, shared: bool) -> float:
    """Wall seconds per mini-batch of PipeDream in its steady state."""
    count = MINIBATCHES_PER_STAGE * len(parts)
    run = _Run(parts, hops_s, _one_f_one_b(len(parts), count), shared)
    run.done()
    return _beat(run.finished[count // 2 : count - 2 * len(parts)])


def _beat(ends: Sequence[float]) -> float:
    """Mean distance of `ends` over their shortest period; over all of them if they have none."""
    for period in range(1, len(ends) // 2):
        steps = [b - a for a, b in zip(ends, ends[period:], strict=False)]
        if max(steps) - min(steps) <= ROUNDING * ends[-1]:
            return steps[0] / period
    return (ends[-1] - ends[0]) / (len(ends) - 1)


def _gpipe(stages: int, microbatches: int) -> list[list[Op]]:
    return [[(kind, stage, m) for kind in "FB" for m in range(microbatches)] for stage in range(stages)]


def _one_f_one_b(stages: int, microbatches: int) -> list[list[Op]]:
    """PipeDream's order: stage s has up to P − s mini-batches in flight, and backward goes first."""
    orders = []
    for stage in range(stages):
        ahead = min(stages - stage, microbatches)
        order = [("F", stage, m) for m in range(ahead)]
        for m in range(microbatches):
            order.append(("B", stage, m))
            if m + ahead < microbatches:
                order.append(("F", stage, m + ahead))
        orders.append(order)
    return orders


class _Run:
    """An event loop over ends of ops and transfers; ties go by the order in which they were queued."""

    def __init__(
        self,
        parts: Sequence[SubModel],
        hops_s: Sequence[float],
        orders: Sequence[Sequence[Op]],
        shared: bool,
    ) -> None:
        self.parts, self.hops_s, self.orders, self.shared = parts, hops_s, orders, shared
        self.at = [0] * len(parts)  # the next op of each stage
        self.busy = [False] * len(parts)
        self.there = {op for op in orders[0] if op[0] == "F"}  # ops whose input has arrived
        self.waiting: dict[
            int, list[tuple[float, int, int, Op]]
        ] = {}  # of each link: (ready, sequence, hop, goal)
        self.link_busy: set[int] = set()
        self.heap: list[tuple[float, int, Op, int]] = []  # ends; the link of a transfer, -1 of an op
        self.finished: list[float] = []  # end of each mini-batch
        self.sequence, self.now = 0, 0.0

    def done(self) -> float:
        """Seconds from the first start to the last end."""
        self._start(0)
        while self.heap:
            self.now, _, op, link = heapq.heappop(self.heap)
            if link < 0:
                self._end(op)
            else:
                self.link_busy.discard(link)
                self.there.add(op)
                self._start(op[1])
                self._send(link)
        assert all(at == len(order) for at, order in zip(self.at, self.orders, strict=True))  # no op waits
        return self.now

    def _push(self, at: float, op: Op, link: int = -1) -> None:
        heapq.heappush(self.heap, (at, self.sequence, op, link))
        self.sequence += 1

    def _start(self, stage: int) -> None:
        if self.busy[stage] or self.at[stage] == len(self.orders[stage]):
            return
        op = self.orders[stage][self.at[stage]]
        if op in self.there:
            self.busy[stage] = True
            part = self.parts[stage]
            self._push(self.now + (part.forward_s if op[0] == "F" else part.backward_s), op)

    def _end(self, op: Op) -> None:
        kind, stage, m = op
        self.busy[stage] = False
        self.at[stage] += 1
        if kind == "B" and stage == 0:
            self.finished.append(self.now)
        elif kind == "F" and stage == len(self.parts) - 1:
            self.there.add(("B", stage, m))
        else:
            self._hand_on(op)
        self._start(stage)

    def _hand_on(self, op: Op) -> None:
        kind, stage, m = op
        hop = stage if kind == "F" else stage - 1
        link = 0 if self.shared else 2 * hop + (kind == "B")
        goal = (kind, stage + 1 if kind == "F" else stage - 1, m)
        heapq.heappush(self.waiting.setdefault(link, []), (self.now, self.sequence, hop, goal))
        self.sequence += 1
        self._send(link)

    def _send(self, link: int) -> None:
        if link in self.link_busy or not self.waiting.get(link):
            return
        _, _, hop, goal = heapq.heappop(self.waiting[link])
        self.link_busy.add(link)
        self._push(self.now + self.hops_s[hop], goal, link)
