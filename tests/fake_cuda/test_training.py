"""Whole iterations of small pipelines on the fake device: right, in order, and wrong without single lines."""

from typing import Any

import pytest
import torch

from engine.inputs import parse
from engine.job.job import TrainJob
from engine.job.planned import schedule_of
from engine.nn.device import CudaDevice
from engine.train.profiling import ProfileRequest, profile_stage
from engine.train.recovery.memory import Header, Memory, new_memory
from engine.train.staging import StagedOutgoing, StagedSums
from tests.fake_cuda.gpu import Gpu
from tests.fake_cuda.memory import Kind
from tests.fake_cuda.mutating import without
from tests.fake_cuda.patches import fake_cuda
from tests.fake_cuda.pipeline import train
from tests.runtime.cells import far, whole
from tests.runtime.jobs import job

LLAMA = {"family": "llama", "layers": 3, "hidden": 32, "heads": 4, "kv_heads": 2, "seq": 16}


def of(**changes: object) -> TrainJob:
    """A job of one pipeline of three stages, two microbatches each."""
    return job(**{"pipelines": 1, "microbatches": 2, "policy": "1f1b", "dtype": "fp64", **changes})


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several buckets, so that some are summed while the backward pass goes on."""
    monkeypatch.setattr("engine.train.gradients.BUCKET_BYTES", 40_000)


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": "1f1b"},
        {"policy": "zb-v", "recompute": False, "model": {**LLAMA, "layers": 6}},
        {"policy": "atlas", "dtype": "bf16", "model": LLAMA},
    ],
    ids=lambda changes: changes["policy"],
)
def test_iterations_equal_one_pass_and_are_in_order(changes: dict[str, object]) -> None:
    train_job = of(**changes)
    with fake_cuda(count=3) as gpu:
        answer = train(train_job, gpu)
    assert gpu.faults == []
    assert far(answer, whole(train_job)) < (0.02 if train_job.device.dtype == "bf16" else 1e-9)  # type: ignore[arg-type]
    schedule = schedule_of(train_job)
    assert answer.ops == [[str(op) for op in schedule.order(0, stage)] for stage in range(3)]


def test_the_next_iteration_is_in_order_behind_the_last() -> None:
    with fake_cuda(count=3) as gpu:
        train(of(), gpu, iterations=2)
    assert gpu.faults == []


def test_buckets_are_summed_while_the_backward_pass_goes_on() -> None:
    with fake_cuda(count=3) as gpu:
        train(of(), gpu)
    fetches = [ran for ran in gpu.ran if ran.name == "copy to host" and ran.stream.device == 1]
    ops = [ran for ran in gpu.ran if ran.name == "mm" and ran.stream.device == 1]
    beside = [f for f in fetches if any(op.begin < f.end and f.begin < op.end for op in ops)]
    assert beside


def faults(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, line: str, instead: str = "pass"
) -> Gpu:
    """What is found where a line is missing."""
    without(monkeypatch, owner, method, line, instead)
    with fake_cuda(count=3) as gpu:
        train(of(), gpu)
    return gpu


def test_an_op_that_does_not_wait_for_its_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = faults(monkeypatch, CudaDevice, "load", "ops.wait_stream(self._loads[side])")
    assert Kind.TOO_EARLY in gpu.kinds
    gpu.expect("does not wait for copy to device on stream . of CudaDevice.__init__")


def test_a_message_whose_buffer_is_given_back_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = faults(monkeypatch, CudaDevice, "load", "self._loading.append((copied, source))")
    assert gpu.kinds == {Kind.REUSED}
    gpu.expect("pinned memory is given back while copy to device")


def test_a_message_whose_place_on_the_gpu_is_given_back_too_early_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = faults(monkeypatch, CudaDevice, "load", "loaded.record_stream(ops)")
    assert gpu.kinds == {Kind.REUSED}
    gpu.expect("device memory is given back while")


def test_a_message_that_is_sent_before_it_is_fetched_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = faults(monkeypatch, CudaDevice, "_copy", "stream.synchronize()")
    assert Kind.NOT_JOINED in gpu.kinds
    gpu.expect(r"the host \(thread send_0\) reads what copy to host on stream .* of CudaDevice._copy")


def test_a_message_that_is_fetched_before_it_is_made_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = faults(monkeypatch, StagedOutgoing, "_send", "self._device.reach(ready)")
    assert Kind.TOO_EARLY in gpu.kinds
    gpu.expect(r"copy to host .*thread send_0\) does not wait for")


def test_gradients_that_are_fetched_before_they_are_made_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = faults(monkeypatch, StagedSums, "_through_host", "self._device.reach(ready)")
    assert Kind.TOO_EARLY in gpu.kinds
    gpu.expect(r"copy to host .*thread sums_0\) does not wait for")


def test_sums_that_nobody_waits_for_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever comes first, the sum or the optimizer: they are not in order."""
    late: list[Any] = []
    monkeypatch.setattr("engine.train.gradients.finish", lambda work, who: late.append(work))
    with fake_cuda(count=3) as gpu:
        train(of(), gpu)
        for work in late:
            work.wait()
    assert gpu.kinds & {Kind.TOO_EARLY, Kind.REUSED}


def test_a_state_that_is_told_of_before_it_is_copied_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever reads the header of a step takes its tensors to be there."""

    def kept(gpu: Gpu) -> None:
        publish = Memory.publish

        def published(memory: Memory, header: Header) -> None:
            publish(memory, header)
            gpu.host_reads(memory.body(header.step))

        with monkeypatch.context() as patch:
            patch.setattr(Memory, "publish", published)
            train(of(), gpu)

    with fake_cuda(count=3) as gpu:
        kept(gpu)
    assert gpu.faults == []
    without(monkeypatch, Memory, "keep", "self._device.settle()")
    with fake_cuda(count=3) as gpu:
        kept(gpu)
    assert gpu.kinds == {Kind.NOT_JOINED}
    gpu.expect("the host .* reads what copy to host on stream . of CudaDevice.__init__")
    gpu.expect("the run ends and nobody has waited")


def test_a_rank_goes_on_from_what_it_kept() -> None:
    with fake_cuda() as gpu:
        device = CudaDevice(0)
        layer = torch.nn.Linear(16, 16).to(device.name)
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
        memory = Memory(new_memory(0), list(layer.parameters()), optimizer, device)
        outputs = []
        for step in range(1, 4):
            layer(torch.ones(4, 16, device=device.name)).square().sum().backward()
            optimizer.step()
            if step < 3:
                memory.keep(Header(step=step, resumed_from=None, square_sum=0.0, loss=0.0))
            outputs.append(layer.weight.detach().cpu())
        memory.recall(2)
        assert torch.equal(layer.weight.detach().cpu(), outputs[1])
        optimizer.step()
        assert torch.equal(layer.weight.detach().cpu(), outputs[2])
        device.settle()
    assert gpu.faults == []


def test_a_profile_reads_times_of_the_device() -> None:
    with fake_cuda() as gpu:
        request = {"model": LLAMA, "stages": 3, "device": "cuda", "repeats": 2}
        measured = profile_stage(parse(ProfileRequest, request), 1)
    assert gpu.faults == []
    took_s = max(ran.end for ran in gpu.ran)
    assert all(0 < median < 1e3 * took_s for median, _ in measured.times_ms.values())
