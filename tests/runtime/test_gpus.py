"""CUDA devices as far as there need be none: who takes which, what is refused, what goes through the host."""

import dataclasses
import mmap
import os
import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from engine.errors import InputError
from engine.job.backends import backend_of, hops_of
from engine.job.launch import single_machine
from engine.model.memory import CUDA_CONTEXT_BYTES
from engine.nn.device import CpuDevice, EmulatedDevice, Moment, share_of_memory
from engine.run.gpus import _check_seen, check_machine
from engine.schedule.traversal import Traversal, straight
from engine.train.exchange import Key, Passage
from engine.train.recovery.memory import SLOTS, Header, Memory, held, new_memory
from engine.train.staging import StagedOutgoing, StagedSums, staging
from tests.runtime.jobs import job

MIXED = {"devices": {"pipelines": [[0, 1, 4], [2, 3, 5]]}, "dc_of_stage": None, "policy": "1f1b"}


class Gpu(CpuDevice):
    """Stands where a CUDA device does: what is on it must be fetched, by its own threads, once it is made."""

    apart = True

    def __init__(self) -> None:
        self.fetched_by: list[str] = []
        self.made = threading.Event()

    def now(self) -> Any:
        return self.made

    def reach(self, moment: Any) -> None:
        assert moment.wait(5.0)

    def copy_out(self, source: Tensor) -> Tensor:
        self.fetched_by.append(threading.current_thread().name)
        return source.clone()


class Settling(CpuDevice):
    """Says what was found in memory when the copies were waited for."""

    def __init__(self) -> None:
        self.pinned: list[int] = []
        self.settled_before_header: list[tuple[int, ...]] = []

    def pin(self, memory: mmap.mmap) -> None:
        self.pinned.append(len(memory))
        self._memory = memory

    def settle(self) -> None:
        size = len(self._memory) // SLOTS
        headers = [Header.unpack(self._memory[at : at + Header.LAYOUT.size]) for at in (0, size)]
        self.settled_before_header.append(tuple(header.step for header in headers if header))


class Wire:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.sent: list[tuple[Key, Tensor]] = []

    def begin(self, iteration: int) -> None:
        self.begun.append(iteration)

    def send(self, key: Key, tensor: Tensor, ready: Moment) -> Any:
        self.sent.append((key, tensor))
        return self

    def wait(self) -> Passage:
        return Passage(start=1.0, end=2.0, arrives=3.0)


class Doubling:
    """A group of two replicas that have the same."""

    def allreduce(self, tensors: list[Tensor]) -> Any:
        tensors[0].mul_(2)
        return self

    def wait(self) -> None: ...


def test_ranks_of_one_machine_take_a_gpu_each_whatever_their_data_centre() -> None:
    assert [a.gpu for a in single_machine(job(device="cuda"), run="x", log_dir="").ranks] == list(range(6))
    placed = single_machine(job(device="cuda", **MIXED), run="x", log_dir="")
    assert [a.gpu for a in placed.ranks] == [0, 1, 4, 2, 3, 5]
    assert [a.gpu for a in single_machine(job(), run="x", log_dir="").ranks] == [0, 1, 0, 2, 3, 1]


def test_gpus_that_are_not_there_or_taken_twice_are_refused_before_anything_starts() -> None:
    spec = single_machine(job(device="cuda"), run="x", log_dir="")
    with pytest.raises(InputError, match="torch sees no CUDA device"):
        _check_seen({0: 0}, 0)
    with pytest.raises(InputError, match="rank 5 is assigned GPU 5, but torch sees 4"):
        _check_seen({gpu: gpu for gpu in range(6)}, 4)
    _check_seen({gpu: gpu for gpu in range(6)}, 6)
    same = tuple(dataclasses.replace(a, gpu=a.gpu % 3) for a in spec.ranks)
    with pytest.raises(InputError, match="ranks_per_gpu: 1: at least 2, as ranks 0, 3 take GPU 0"):
        check_machine(dataclasses.replace(spec, ranks=same))
    check_machine(single_machine(job(), run="x", log_dir=""))  # says nothing of other devices


def test_ranks_without_gpus_fit_into_the_memory_of_their_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 bytes a parameter in fp32: weight, gradient and AdamW's two moments."""
    spec = single_machine(job(pipelines=1), run="x", log_dir="")
    needed = 16 * spec.job.model.shape.parameters
    monkeypatch.setattr("engine.run.gpus.machine_bytes", lambda: needed)
    check_machine(spec)
    monkeypatch.setattr("engine.run.gpus.machine_bytes", lambda: needed - 1)
    with pytest.raises(InputError, match=r"^model: .*weights, gradients and optimizer states of 3 ranks are"):
        check_machine(spec)
    first = dataclasses.replace(spec, local=spec.local[:1])
    check_machine(first)  # the other ranks are on other machines


@pytest.mark.parametrize(
    ("ranks_per_gpu", "gpus"), [(6, [0] * 6), (2, [0, 0, 1, 1, 2, 2]), (4, [0] * 4 + [1] * 2)]
)
def test_ranks_share_gpus_where_the_job_says_so(
    monkeypatch: pytest.MonkeyPatch, ranks_per_gpu: int, gpus: list[int]
) -> None:
    spec = single_machine(job(device="cuda", ranks_per_gpu=ranks_per_gpu), run="x", log_dir="")
    assert [a.gpu for a in spec.ranks] == gpus
    monkeypatch.setattr("engine.run.gpus.seen", lambda: len(set(gpus)))
    check_machine(spec)
    monkeypatch.setattr("engine.run.gpus.seen", lambda: len(set(gpus)) - 1)
    with pytest.raises(InputError, match="torch sees"):
        check_machine(spec)


@given(whole=st.floats(4e9, 300e9), ranks=st.integers(1, 64))
def test_the_ranks_of_a_gpu_fit_on_it_with_what_cuda_takes_for_each(whole: float, ranks: int) -> None:
    if whole <= ranks * CUDA_CONTEXT_BYTES:
        with pytest.raises(InputError, match="ranks_per_gpu"):
            share_of_memory(whole, ranks)
    else:
        share = share_of_memory(whole, ranks)
        assert 0 < share < 1
        assert ranks * (share * whole + CUDA_CONTEXT_BYTES) == pytest.approx(whole)


def test_a_step_counts_as_kept_only_once_its_copies_are_done() -> None:
    """The state after a step is whole in memory once `keep` returns, however the device copies."""
    parameters = [nn.Parameter(torch.arange(4.0))]
    optimizer = torch.optim.AdamW(parameters)
    parameters[0].grad = torch.ones(4)
    optimizer.step()
    gpu = Settling()
    fd = new_memory(0)
    memory = Memory(fd, parameters, optimizer, gpu)
    assert gpu.pinned == [os.fstat(fd).st_size]
    memory.keep(Header(step=1, resumed_from=None, square_sum=0.0, loss=0.0))
    assert gpu.settled_before_header == [()]  # nobody finds the slot whole while copies run
    assert held(fd) == (1,)
    os.close(fd)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_machine_without_a_gpu_says_so() -> None:
    with pytest.raises(InputError, match=r"device.*torch sees no CUDA device on this machine"):
        check_machine(single_machine(job(device="cuda"), run="x", log_dir=""))


@pytest.mark.parametrize(
    ("device", "dcs", "nccl", "expected"),
    [
        ("cuda", [0, 0], True, "nccl"),
        ("cuda", [0, 0], False, "gloo"),  # a torch without NCCL
        ({"kind": "cuda", "nccl": False}, [0, 0], True, "gloo"),
        ({"kind": "cuda", "nccl": True}, [0, 0], True, "nccl"),
        ("cuda", [0, 1], True, "transport"),  # NCCL stays inside a data centre
        ({"kind": "cuda", "ranks_per_gpu": 3}, [0, 0], True, "gloo"),  # NCCL refuses ranks that share a GPU
        ({"kind": "cuda", "ranks_per_gpu": 3}, [0, 1], True, "transport"),
        ("cpu", [0, 0], True, "gloo"),
        ("cpu", [0, 1], False, "transport"),
    ],
)
def test_what_carries_messages_and_sums(device: Any, dcs: list[int], nccl: bool, expected: str) -> None:
    assert backend_of(job(device=device), dcs, nccl=nccl) == expected


def test_the_hops_of_a_job_name_their_backends() -> None:
    placed = {"pipelines": [[0, 1, 4], [2, 5, 3]]}
    of = job(device="cuda", dc_of_stage=None, devices=placed)
    assert hops_of(of, straight(3)) == [
        {"stages": [0, 1], "datacenters": ["north", "north"], "pipelines": [0], "backend": "nccl"},
        {"stages": [0, 1], "datacenters": ["north", "south"], "pipelines": [1], "backend": "transport"},
        {"stages": [1, 2], "datacenters": ["north", "south"], "pipelines": [0], "backend": "transport"},
        {"stages": [1, 2], "datacenters": ["south", "north"], "pipelines": [1], "backend": "transport"},
    ]
    loop = Traversal(name="loop", stages=3, chunks=2)
    (first, _, last) = hops_of(job(device="cuda", policy="gpipe"), loop)
    assert (first["pipelines"], first["backend"]) == ([0, 1], "nccl")
    assert (last["stages"], last["datacenters"], last["backend"]) == ([2, 0], ["south", "north"], "transport")


def test_messages_are_fetched_beside_the_ops_and_leave_in_order() -> None:
    gpu, wire = Gpu(), Wire()
    way = StagedOutgoing(wire, gpu)
    way.begin(7)
    sent = [way.send((0, m), torch.full((2,), float(m)), gpu.made) for m in range(3)]
    assert not wire.sent, "nothing is fetched before it is made, and nobody waits for that"
    gpu.made.set()
    assert [one.wait().arrives for one in sent] == [3.0] * 3
    assert wire.begun == [7]
    assert [(key, tensor.tolist()) for key, tensor in wire.sent] == [((0, m), [m, m]) for m in range(3)]
    assert threading.current_thread().name not in gpu.fetched_by
    assert len(set(gpu.fetched_by)) == 1


def test_sums_of_a_device_are_taken_in_the_hosts_memory() -> None:
    gpu = Gpu()
    gradients = torch.arange(4.0)
    summing = StagedSums(Doubling(), gpu).allreduce([gradients])
    gpu.made.set()
    summing.wait()
    assert gradients.tolist() == [0.0, 2.0, 4.0, 6.0]


def test_only_a_device_with_memory_of_its_own_needs_any_of_it() -> None:
    wire = Wire()
    assert staging(CpuDevice())(wire) is wire
    assert staging(EmulatedDevice(lambda _: None))(wire) is wire
    assert isinstance(staging(Gpu())(wire), StagedOutgoing)
