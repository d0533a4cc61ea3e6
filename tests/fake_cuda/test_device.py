"""Loads, fetches and timing of CudaDevice on the fake device, and the lines without which they are wrong."""

import pytest
import torch
from torch import Tensor

from engine.nn.device import CudaDevice, share_of_memory
from tests.fake_cuda.gpu import Gpu, Ran
from tests.fake_cuda.memory import Kind
from tests.fake_cuda.mutating import without
from tests.fake_cuda.patches import fake_cuda

SIZE = 512
GIVEN_BACK = "memory is given back while"


def message(device: CudaDevice, value: float = 1.0) -> Tensor:
    """A message in pinned memory, as the transport leaves one."""
    return device.host_buffer((SIZE, SIZE), torch.float32).fill_(value)


def loads_and_ops(device: CudaDevice) -> Tensor:
    """Two messages from each side, each used by an op and then dropped."""
    weights = torch.ones(SIZE, SIZE, device=device.name)
    total = torch.zeros(SIZE, SIZE, device=device.name)
    for _ in range(2):
        for side in ("previous", "next"):
            loaded = device.load(message(device), side)  # type: ignore[arg-type]
            total += loaded @ weights
    device.settle()
    return total


def fetched(device: CudaDevice) -> float:
    """The sum of what an op made, read on the host."""
    tripled = torch.full((SIZE, SIZE), 2.0, device=device.name) * 3
    device.reach(device.now())
    return float(device.copy_out(tripled).sum())


def test_what_is_loaded_and_fetched_is_right_and_in_order() -> None:
    with fake_cuda() as gpu:
        device = CudaDevice(0)
        total = loads_and_ops(device)
        assert total.device == torch.device("cuda", 0)
        assert total.cpu().eq(4 * SIZE).all()
        assert fetched(device) == 6.0 * SIZE * SIZE
    assert gpu.faults == []


@pytest.mark.parametrize(
    ("line", "instead", "kind", "says"),
    [
        (
            "ops.wait_stream(self._loads[side])",
            "pass",
            Kind.TOO_EARLY,
            "mm .* does not wait for copy to device",
        ),
        (
            "self._loading.append((copied, source))",
            "pass",
            Kind.REUSED,
            f"pinned {GIVEN_BACK} copy to device",
        ),
        ("self._loading[0][0].query()", "True", Kind.REUSED, f"pinned {GIVEN_BACK} copy to device"),
        ("loaded.record_stream(ops)", "pass", Kind.REUSED, f"device {GIVEN_BACK} mm"),
    ],
    ids=["no wait for the copy", "message not kept", "message let go too early", "memory not recorded"],
)
def test_a_load_needs_each_of_its_lines(
    monkeypatch: pytest.MonkeyPatch, line: str, instead: str, kind: Kind, says: str
) -> None:
    without(monkeypatch, CudaDevice, "load", line, instead)
    with fake_cuda() as gpu:
        loads_and_ops(CudaDevice(0))
    assert kind in gpu.kinds
    gpu.expect(says)


def test_a_fetch_that_nobody_waits_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, CudaDevice, "_copy", "stream.synchronize()")
    with fake_cuda() as gpu:
        fetched(CudaDevice(0))
    assert gpu.kinds == {Kind.NOT_JOINED, Kind.REUSED}
    gpu.expect("the host .* reads what copy to host on stream .* may still write")
    gpu.expect("nobody has waited for copy to host")


def test_a_buffer_that_is_filled_again_under_a_copy_is_found() -> None:
    with fake_cuda() as gpu:
        device = CudaDevice(0)
        buffer = message(device)
        device.load(buffer, "previous")
        buffer.fill_(2.0)
        device.settle()
    assert gpu.kinds == {Kind.REUSED}
    gpu.expect("the host .* writes to memory that copy to device .* may still use")


def test_loads_run_beside_ops() -> None:
    with fake_cuda() as gpu:
        device = CudaDevice(0)
        weights = torch.ones(SIZE, SIZE, device=device.name)
        for _ in range(100):
            weights = weights * 1.0
        loaded = device.load(message(device), "next")
        loaded @ weights
        device.settle()
    ops = [ran for ran in gpu.ran if ran.name in ("mul", "mm")]
    (copy,) = (ran for ran in gpu.ran if ran.name == "copy to device")
    assert beside(copy, ops[:-1]) > 0.9 * (copy.end - copy.begin)
    assert ops[-1].begin >= copy.end


def beside(copy: Ran, ops: list[Ran]) -> float:
    """Seconds of a copy during which one of some ops ran."""
    return sum(max(0.0, min(copy.end, op.end) - max(copy.begin, op.begin)) for op in ops)


def test_ops_are_timed_by_the_clock_of_the_device() -> None:
    spans: list[tuple[float, float]] = []
    with fake_cuda() as gpu:
        device = CudaDevice(0)
        start = device.begin(0.0)
        loads_and_ops(device)
        early = torch.cuda.Event(enable_timing=True)
        torch.ones(SIZE, SIZE, device=device.name)
        early.record()
        with pytest.raises(RuntimeError, match="not ready"):
            start.elapsed_time(early)
        end = device.end(start, None)
        device.tell(start, end, lambda begin, end: spans.append((begin, end)))
        assert not spans
        device.settle()
    ((begin, over),) = spans
    took = max(ran.end for ran in gpu.ran) - min(ran.begin for ran in gpu.ran)
    assert over - begin == pytest.approx(took, rel=0.01)


def test_a_rank_that_shares_a_gpu_has_its_share_of_the_memory() -> None:
    with fake_cuda(memory_bytes=8 * 10**9) as gpu:
        device = CudaDevice(0, ranks=4)
        share = share_of_memory(8e9, 4)
        assert gpu.limit_bytes == [int(share * 8 * 10**9)]
        held = torch.empty(10**9, dtype=torch.uint8, device=device.name)
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(10**9, dtype=torch.uint8, device=device.name)
        del held
        torch.empty(10**9, dtype=torch.uint8, device=device.name)
        assert device.peak_bytes() == 10**9


def test_tensors_of_host_and_device_do_not_mix() -> None:
    with fake_cuda():
        device = CudaDevice(0)
        there, here = torch.ones(4, device=device.name), torch.ones(4)
        with pytest.raises(RuntimeError, match="same device"):
            there + here
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert (there * 2.0).tolist() == [2.0] * 4
        assert here.to(device.name).device == device.name
    assert torch.ones(2).device == torch.device("cpu")


@pytest.mark.parametrize("waits", ["for the stream", "for an event", "on the host", "not at all"])
def test_memory_of_another_stream_is_not_used_before_its_last_tenant_is_done(waits: str) -> None:
    """Torch gives freed memory to the next tensor of the same stream, whose ops may still be under way."""
    with fake_cuda() as gpu:
        device = CudaDevice(0)
        ops, other = torch.cuda.current_stream(device.name), torch.cuda.Stream(device.name)
        (torch.ones(SIZE, device=device.name) * 2).mul_(3)  # given back while it is computed
        fresh = torch.empty(SIZE, device=device.name)
        if waits == "for the stream":
            other.wait_stream(ops)
        elif waits == "for an event":
            other.wait_event(ops.record_event())
        elif waits == "on the host":
            torch.cuda.synchronize()
        with torch.cuda.stream(other):
            fresh.fill_(1.0)
        other.synchronize()
        device.settle()
    assert gpu.kinds == ({Kind.REUSED} if waits == "not at all" else set())


def test_the_fake_leaves_torch_as_it_was() -> None:
    before = torch.empty, Tensor.to, torch.cuda.Stream, torch.cuda.is_available()
    with fake_cuda() as gpu:
        assert torch.cuda.is_available()
        assert isinstance(gpu, Gpu)
    assert (torch.empty, Tensor.to, torch.cuda.Stream, torch.cuda.is_available()) == before
