"""Rounds of a swap worker on the fake device: loads and stores beside ops, and in order."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from engine.job.job import TrainJob
from engine.job.swap.planned import planned
from engine.nn.device import CpuDevice, CudaDevice, Device
from engine.train.corpus import open_corpus
from engine.train.swap.host_model import HostModel
from engine.train.swap.memory import DeviceMemory
from engine.train.swap.rounds import Rounds
from engine.train.swap.swapper import Swapper
from tests.fake_cuda.gpu import Gpu
from tests.fake_cuda.memory import Kind
from tests.fake_cuda.mutating import without
from tests.fake_cuda.patches import fake_cuda
from tests.runtime.swap_jobs import GPU, job


@dataclass
class Spans:
    """Stands in for the recorder."""

    loads: int = 0
    ops: list[str] = field(default_factory=list)

    def op(self, op: str, unit: int | None, start: float, end: float, **_: Any) -> None:
        if op == "load":
            self.loads += 1
        else:
            self.ops.append(op)


@dataclass
class Worker:
    """What a swap worker does between what the tracker says: rounds, and the optimizer on the host."""

    job: TrainJob
    device: Device

    def __post_init__(self) -> None:
        plan = planned(self.job)
        assert len(plan.subs) > 2
        self.spans, self.model = Spans(), HostModel(self.job, plan.subs, self.device)
        memory = DeviceMemory(plan.result.capacity_bytes)
        recorder: Any = self.spans
        self.swapper = Swapper(self.model, plan, self.device, memory, recorder)
        self.rounds = Rounds(
            self.model,
            plan,
            self.swapper,
            self.device,
            recorder,
            scale=torch.tensor(0.25, dtype=torch.float64),
            batch=self._batch,
        )
        self._corpus = open_corpus(self.job.data.files, seq=self.job.model.seq, seed=self.job.optimizer.seed)

    def train(self, steps: int) -> tuple[list[float], Tensor]:
        """Losses of some steps, and the weights after them."""
        losses = []
        for _ in range(steps):
            losses.append(self.rounds.run((0, 1)) + self.rounds.run((2, 3)))
            self.swapper.settle()
            self.model.optimizer.step()
            self.model.flat.zero_()
            self.swapper.refresh()
        self.device.settle()  # the run ends here; gradients on the device are zeroed for a next step
        return losses, torch.cat([weights.flatten() for weights in self.model.weights])

    def _batch(self, unit: int) -> tuple[Tensor, Tensor]:
        tokens, targets = self._corpus.batch(0, 4, np.array([unit]))
        return torch.from_numpy(tokens), torch.from_numpy(targets)


def of(gradients: str = "host") -> TrainJob:
    return job(microbatches=2, micro_batch=1, swap={"gpu": GPU, "gradients": gradients})


@pytest.mark.parametrize("gradients", ["host", "device"])
def test_steps_equal_those_on_the_host_and_are_in_order(gradients: str) -> None:
    train_job = of(gradients)
    losses, weights = Worker(train_job, CpuDevice()).train(2)
    with fake_cuda() as gpu:
        there = Worker(train_job, CudaDevice(0))
        assert there.train(2)[0] == pytest.approx(losses, rel=1e-12)
        assert torch.equal(torch.cat([w.flatten() for w in there.model.weights]), weights)
        assert there.spans.ops.count("F") == there.spans.ops.count("B")
    assert gpu.faults == []


def test_loads_run_beside_ops() -> None:
    with fake_cuda() as gpu:
        Worker(of(), CudaDevice(0)).train(1)
    loads = [ran for ran in gpu.ran if ran.name == "copy to device" and "_copy" in str(ran.stream)]
    ops = [ran for ran in gpu.ran if ran.stream.priority < 0]
    assert loads
    assert any(op.begin < load.end and load.begin < op.end for load in loads for op in ops)


def faults(patch: pytest.MonkeyPatch, owner: type, method: str, line: str, instead: str = "pass") -> Gpu:
    """What is found where a line is missing."""
    without(patch, owner, method, line, instead)
    with fake_cuda() as gpu:
        Worker(of(), CudaDevice(0)).train(1)
    return gpu


def test_an_op_that_begins_before_its_weights_are_loaded_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = faults(monkeypatch, CudaDevice, "_copy", "stream.synchronize()")
    gpu.expect(r"on stream . of CudaDevice.__init__ .* does not wait for copy to device .*loads_0")
    gpu.expect(r"the host \(thread gradients_0\) reads what copy to host .* may still write")
    assert gpu.kinds == {Kind.TOO_EARLY, Kind.NOT_JOINED, Kind.REUSED}


def test_weights_that_are_loaded_anew_while_ops_use_them_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = faults(monkeypatch, Rounds, "_end", "self._device.settle()")
    gpu.expect("copy to device .*loads_0.* overwrites what .* on stream . of CudaDevice.__init__")
    gpu.expect("copy to host .*gradients_0.* does not wait for")
