"""CUDA devices as far as there need be none: who takes which, what is refused, what goes through the host."""

import dataclasses
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from engine.errors import InputError
from engine.runtime.device import CpuDevice, EmulatedDevice, Moment
from engine.runtime.exchange import Key, Passage
from engine.runtime.gpus import _check_seen, check_machine
from engine.runtime.launch import single_machine
from engine.runtime.mesh import backend_of
from engine.runtime.staging import StagedOutgoing, StagedSums, staging
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


class Wire:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.sent: list[tuple[Key, Tensor]] = []

    def begin(self, iteration: int) -> None:
        self.begun.append(iteration)

    def send(self, key: Key, tensor: Tensor, made: Moment) -> Any:
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
    with pytest.raises(InputError, match="rank 5 is to take GPU 5, but torch sees 4"):
        _check_seen({gpu: gpu for gpu in range(6)}, 4)
    _check_seen({gpu: gpu for gpu in range(6)}, 6)
    same = tuple(dataclasses.replace(a, gpu=a.gpu % 3) for a in spec.ranks)
    with pytest.raises(InputError, match="ranks 0 and 3 are both to take GPU 0"):
        check_machine(dataclasses.replace(spec, ranks=same))
    check_machine(single_machine(job(), run="x", log_dir=""))  # says nothing of other devices


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_machine_without_a_gpu_says_so() -> None:
    with pytest.raises(InputError, match=r"device.*torch sees no CUDA device on this machine"):
        check_machine(single_machine(job(device="cuda"), run="x", log_dir=""))


@pytest.mark.parametrize(
    ("kind", "dcs", "nccl", "expected"),
    [
        ("cuda", [0, 0], True, "nccl"),
        ("cuda", [0, 0], False, "gloo"),
        ("cuda", [0, 1], True, "ring"),  # NCCL stays inside a data centre
        ("cpu", [0, 0], True, "gloo"),
        ("cpu", [0, 1], False, "ring"),
    ],
)
def test_what_sums_over_replicas(kind: str, dcs: list[int], nccl: bool, expected: str) -> None:
    device = CpuDevice()
    device.name = torch.device(kind)
    assert backend_of(device, dcs, nccl=nccl) == expected


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
