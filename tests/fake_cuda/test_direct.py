"""Messages that stay on GPUs, over a fake NCCL: whole iterations of all policies, and planted faults."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed import HashStore

from engine.job.job import TrainJob
from engine.job.launch import RankAssignment, single_machine
from engine.job.planned import pinned, schedule_of
from engine.nn.device import CudaDevice
from engine.nn.lane import CudaLane, CudaTransfer
from engine.schedule.registry import MODULES, SEARCHING
from engine.train.direct import DirectIncoming, DirectLink, DirectOutgoing
from engine.train.mesh import Mesh
from engine.train.wiring import ends_of
from tests.fake_cuda.gpu import Gpu
from tests.fake_cuda.memory import Kind
from tests.fake_cuda.mutating import without
from tests.fake_cuda.nccl import End, Nccl
from tests.fake_cuda.patches import fake_cuda
from tests.fake_cuda.pipeline import Answer, direct_ends, train
from tests.runtime.cells import far, whole
from tests.runtime.jobs import job

STAGES = 3


def of(**changes: Any) -> TrainJob:
    """A job of one pipeline of three stages in one data centre, three microbatches each."""
    small = {"layers": 6, "hidden": 16, "heads": 2, "seq": 8}
    values = {
        "pipelines": 1,
        "dtype": "fp64",
        "recompute": False,
        "dc_of_stage": [0] * STAGES,
        "model": small,
    }
    return job(**{**values, "policy": "1f1b", **changes})


def over_nccl(train_job: TrainJob, gpu: Gpu) -> Answer:
    """Train an iteration with a communicator for each link inside a data centre."""
    return train(train_job, gpu, ends=direct_ends(train_job, schedule_of(train_job), Nccl(gpu, STAGES)))


@pytest.mark.parametrize(
    "policy",
    [pytest.param(name, marks=pytest.mark.long) if name in SEARCHING else name for name in MODULES],
)
def test_an_iteration_of_each_policy_equals_one_pass_and_is_in_order(policy: str) -> None:
    # One search: a second one might end otherwise, and the ends of links are of the schedule.
    train_job = pinned(of(policy=policy, **({"time_limit_s": 1} if policy in SEARCHING else {})))
    with fake_cuda(count=STAGES) as gpu:
        answer = over_nccl(train_job, gpu)
    assert gpu.faults == []
    assert far(answer, whole(train_job)) < 1e-9


def test_links_within_and_between_data_centres_and_a_second_iteration() -> None:
    """The first hop is NCCL's, the second goes through host memory; all hops through it gives the same."""
    train_job = of(dc_of_stage=[0, 0, 1], recompute=True, policy="atlas")
    with fake_cuda(count=STAGES) as gpu:
        ends = direct_ends(train_job, schedule_of(train_job), Nccl(gpu, STAGES))
        assert sorted(ends) == [0, 1]
        mixed = train(train_job, gpu, iterations=2, ends=ends)
    assert gpu.faults == []
    assert {ran.name for ran in gpu.ran if ran.name.startswith(("nccl", "copy to"))} == {
        "nccl send",
        "nccl receive",
        "copy to host",
        "copy to device",
    }
    with fake_cuda(count=STAGES) as gpu:
        through_host = train(train_job, gpu, iterations=2)
    assert far(mixed, through_host) == 0.0


SIZE = 64
MESSAGES = 5


class Side:
    """One of two ranks that send each other messages; to be made and used on a thread of its own."""

    def __init__(self, number: int, outgoing: End, incoming: End) -> None:
        self.device = CudaDevice(number)
        links = [DirectLink(group=group, lane=CudaLane(self.device.name)) for group in (outgoing, incoming)]
        self._outgoing = DirectOutgoing(links[0], 1 - number)
        keys = [(0, m) for m in range(MESSAGES)]
        self._incoming = DirectIncoming(links[1], 1 - number, keys, self._buffer)

    def exchange(self, needed: list[int]) -> list[float]:
        """Make and send all messages, and sum up what comes, in the order in which it is needed."""
        self._incoming.begin(0)
        sent = []
        for m in range(MESSAGES):
            doubled = torch.full((SIZE,), float(m), device=self.device.name) * 2
            sent.append(self._outgoing.send((0, m), doubled, None))
        del doubled
        sums = [self._sum(m) for m in needed]
        self.device.settle()
        for one in sent:
            passage = one.wait()
            assert passage.start <= passage.end == passage.arrives
        return [float(total) for total in sums]

    def _sum(self, m: int) -> Tensor:
        return self._incoming.wait((0, m)).tensor.view(torch.float32).sum()

    def _buffer(self) -> Tensor:
        return torch.empty(SIZE * 4, dtype=torch.uint8, device=self.device.name)


def exchanged(gpu: Gpu, needed: list[int], *, one_for_both: bool = False) -> list[list[float]]:
    """What each of two ranks sums up of the messages of the other."""
    nccl = Nccl(gpu, 2)
    there, back = nccl.pair(), nccl.pair()
    ends = (there[0], back[1]), (back[0], there[1])
    if one_for_both:
        ends = (there[0], there[0]), (there[1], there[1])
    threads = [ThreadPoolExecutor(1, f"rank-{number}") for number in (0, 1)]
    try:
        futures = [thread.submit(Side, number, *ends[number]) for number, thread in enumerate(threads)]
        sides = [one.result() for one in futures]
        futures = [thread.submit(side.exchange, needed) for side, thread in zip(sides, threads, strict=True)]
        return [one.result() for one in futures]
    finally:
        for thread in threads:
            thread.shutdown()


@pytest.mark.parametrize("needed", [[0, 1, 2, 3, 4], [3, 0, 4, 1, 2]], ids=["as sent", "others first"])
def test_messages_arrive_in_whatever_order_they_are_needed(needed: list[int]) -> None:
    with fake_cuda(count=2) as gpu:
        sums = exchanged(gpu, needed)
    assert gpu.faults == []
    assert sums == [[2.0 * m * SIZE for m in needed]] * 2


@pytest.mark.parametrize(
    ("owner", "method", "line", "instead", "kind", "says"),
    [
        (
            CudaLane,
            "begin",
            "self._stream.wait_stream(torch.cuda.current_stream(self._device))",
            "pass",
            Kind.TOO_EARLY,
            "nccl send .* does not wait for mul",
        ),
        (
            CudaLane,
            "begin",
            "tensor.record_stream(self._stream)",
            "pass",
            Kind.REUSED,
            "device memory is given back while nccl send",
        ),
        (
            CudaLane,
            "begin",
            "move().wait()",
            "move()",
            Kind.TOO_EARLY,
            "clone .* does not wait for nccl receive",
        ),
        (
            CudaTransfer,
            "join",
            "torch.cuda.current_stream(self._idle.device).wait_event(self._end)",
            "pass",
            Kind.TOO_EARLY,
            "clone .* does not wait for nccl receive",
        ),
        (
            DirectIncoming,
            "_take_next",
            "buffer.clone()",
            "buffer",
            Kind.TOO_EARLY,
            "sum .* does not wait for nccl",
        ),
        (
            CudaTransfer,
            "wait",
            "self._end.synchronize()",
            "pass",
            Kind.NOT_JOINED,
            "has waited for nccl send",
        ),
    ],
    ids=[
        "sent too early",
        "given back",
        "end not awaited",
        "not joined",
        "buffer posted under its use",
        "not drained",
    ],
)
def test_each_line_is_needed(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, line: str, instead: str, kind: Kind, says: str
) -> None:
    without(monkeypatch, owner, method, line, instead)
    # Where nobody waits for the end, CUDA itself may refuse to give its time.
    refusal = contextlib.suppress(RuntimeError) if method == "wait" else contextlib.nullcontext()
    with fake_cuda(count=2) as gpu, refusal:
        exchanged(gpu, [0, 1, 2, 3, 4])
    assert kind in gpu.kinds
    gpu.expect(says)


def test_one_communicator_for_both_directions_is_a_deadlock() -> None:
    """Why each link has its own: both ranks post a receive before they send."""
    with fake_cuda(count=2) as gpu, pytest.raises(RuntimeError, match="deadlock"):
        exchanged(gpu, [0, 1, 2, 3, 4], one_for_both=True)
    assert Kind.DEADLOCK in gpu.kinds
    gpu.expect("a receive of 256 bytes meets a receive of 256 bytes")


def test_ranks_that_wait_for_each_other_are_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DirectOutgoing, "send", lambda *_: None)
    with fake_cuda(count=2) as gpu, pytest.raises(RuntimeError, match="deadlock"):
        exchanged(gpu, [0])
    gpu.expect("every rank waits for a message")


def test_ranks_connect_their_links_without_waiting_in_a_circle(monkeypatch: pytest.MonkeyPatch) -> None:
    """As NCCL does, a communicator's creation blocks until both of its ranks have come."""
    train_job = of(policy="interleaved")
    schedule, assigned = schedule_of(train_job), single_machine(train_job, run="x", log_dir="").ranks
    with fake_cuda(count=STAGES) as gpu:
        nccl, lock = Nccl(gpu, STAGES), threading.Lock()
        pairs: dict[tuple[int, ...], tuple[End, End]] = {}
        meetings: dict[tuple[int, ...], threading.Barrier] = {}

        def nccl_group(store: Any, me: RankAssignment, ranks: list[int], *, urgent: bool) -> End:
            assert urgent
            with lock:
                pair = pairs.setdefault(tuple(ranks), nccl.pair())
                meeting = meetings.setdefault(tuple(ranks), threading.Barrier(2))
            meeting.wait(timeout=30.0)
            return pair[ranks.index(me.rank)]

        def links(me: RankAssignment) -> dict[int, DirectLink]:
            mesh = object.__new__(Mesh)
            mesh.me, mesh.job, mesh.store = me, train_job, HashStore()
            mesh._schedule, mesh._device = schedule, CudaDevice(me.gpu)
            mesh._by_place = {(a.pipeline, a.stage): a for a in assigned}
            return mesh._direct_links()

        monkeypatch.setattr("engine.train.mesh.nccl_group", nccl_group)
        monkeypatch.setattr("engine.train.mesh.backend_of", lambda job, dcs, *, nccl: "nccl")
        with ThreadPoolExecutor(STAGES) as pool:
            groups = list(pool.map(links, assigned))
    assert gpu.faults == []
    # The loop's last hop joins the last stage to the first: links 4 and 5.
    assert [sorted(one) for one in groups] == [[0, 1, 4, 5], [0, 1, 2, 3], [2, 3, 4, 5]]
    for link in range(6):
        sender, receiver = ends_of(link, STAGES)
        assert pairs[sender, receiver] == (groups[sender][link].group, groups[receiver][link].group)
