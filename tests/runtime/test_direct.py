"""Messages that stay on GPUs, with gloo in the place of NCCL: real sockets, and the order of the sender.

What streams do is in tests/fake_cuda/test_direct.py.
"""

import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch import Tensor
from torch.distributed import HashStore, PrefixStore

from engine.job.launch import RankAssignment, single_machine
from engine.job.planned import schedule_of
from engine.schedule.ir import OpKind, Schedule
from engine.schedule.registry import MODULES, SEARCHING
from engine.train.direct import DirectLink, order_of
from engine.train.mesh import gloo_group
from engine.train.wiring import ends_of, hops_at
from tests.runtime.cells import Cell, far, whole
from tests.runtime.jobs import job

SMALL = {
    "dc_of_stage": [0, 0, 0],
    "pipelines": 1,
    "dtype": "fp64",
    "recompute": False,
    "model": {"layers": 6, "hidden": 16, "heads": 2, "seq": 8},
}


class HostTransfer:
    """A transfer that blocks the host until it is over."""

    def __init__(self, work: Any) -> None:
        self._work, self._start = work, time.monotonic()

    def join(self) -> None:
        self._work.wait()

    def wait(self) -> tuple[float, float]:
        self._work.wait()
        return self._start, time.monotonic()


class HostLane:
    """Transfers of the host."""

    def begin(self, tensor: Tensor, move: Callable[[], Any]) -> HostTransfer:
        return HostTransfer(move())


def links_of(schedule: Schedule) -> list[int]:
    hops = {hop for stage in range(schedule.stages) for hop in hops_at(schedule, stage)}
    return [2 * hop + direction for hop in sorted(hops) for direction in (0, 1)]


def connected(
    schedule: Schedule, ranks: dict[tuple[int, int], RankAssignment]
) -> dict[tuple[int, int], dict[int, DirectLink]]:
    """A gloo group of two for each link, by (pipeline, stage) and link."""
    store, links = HashStore(), {at: {} for at in ranks}  # type: ignore[var-annotated]
    with ThreadPoolExecutor(2) as pool:
        for link in links_of(schedule):
            ends = [ranks[0, stage] for stage in ends_of(link, schedule.stages)]
            numbers = [end.rank for end in ends]
            futures = [pool.submit(gloo_group, PrefixStore(str(link), store), end, numbers) for end in ends]
            for end, group in zip(ends, futures, strict=True):
                links[0, end.stage][link] = DirectLink(group=group.result(), lane=HostLane())
    return links


@pytest.mark.parametrize("policy", ["1f1b", "interleaved", "zb-v"])
def test_two_iterations_equal_one_pass_each(policy: str) -> None:
    train_job = job(**{**SMALL, "policy": policy})
    schedule = schedule_of(train_job)
    ranks = {(r.pipeline, r.stage): r for r in single_machine(train_job, run="x", log_dir="").ranks}
    cell = Cell(train_job, direct=connected(schedule, ranks))
    for iteration in range(2):
        assert far(cell.run(iteration), whole(train_job, iteration)) < 1e-9


@pytest.mark.parametrize("policy", [policy for policy in MODULES if policy not in SEARCHING])
def test_both_ends_of_each_link_know_the_same_messages(policy: str) -> None:
    """The order is that of the sender's ops, and has what the receiver's ops need, each message once."""
    schedule = schedule_of(job(**{**SMALL, "policy": policy}))
    positions = schedule.traversal.positions
    needs, makes = defaultdict(Counter), defaultdict(set)  # type: ignore[var-annotated]  # by link
    for place, (stage, chunk) in enumerate(positions):
        for other, kind in ((place - 1, OpKind.F), (place + 1, OpKind.B)):
            if not 0 <= other < len(positions) or positions[other][0] == stage:
                continue
            sender, made_by = positions[other]
            (link,) = (link for link in links_of(schedule) if ends_of(link, 3) == (sender, stage))
            makes[link].add((kind, made_by))
            ops = (op for op in schedule.order(0, stage) if (op.kind, op.chunk) == (kind, chunk))
            needs[link].update((made_by, op.microbatch) for op in ops)
    for link in links_of(schedule):
        sender, _ = ends_of(link, 3)
        ops = schedule.order(0, sender)
        order = order_of(schedule, 0, link, sender)
        assert list(order) == [(op.chunk, op.microbatch) for op in ops if (op.kind, op.chunk) in makes[link]]
        assert Counter(order) == needs[link]
