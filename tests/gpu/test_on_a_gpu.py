"""What the fake device cannot show: real kernels, real copies, the memory that a rank may use.

The measurements, and all policies, are `make gpu`.
"""

import gc
from collections.abc import Iterator

import pytest
import torch

from benchmarks.gpu.machine import COPIED_BYTES, overlap
from benchmarks.gpu.runs import BAR, CELL, on_card
from benchmarks.train import train
from engine.nn.device import CudaDevice, share_of_memory

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]


@pytest.fixture
def device() -> Iterator[CudaDevice]:
    """The first device; the process has its default stream and all of the memory again afterwards."""
    before = torch.cuda.current_stream(0)
    yield CudaDevice(0)
    torch.cuda.synchronize(0)
    torch.cuda.set_stream(before)
    torch.cuda.set_per_process_memory_fraction(1.0, 0)
    gc.collect()
    torch.cuda.empty_cache()


@pytest.mark.parametrize("policy", ["1f1b", "zb-v"])
def test_a_policy_computes_what_the_cpu_computes(policy: str) -> None:
    """Three ranks share the card; one pipeline, four steps."""
    document = {**CELL, "policy": policy, "pipelines": 1, "steps": 4}
    expected = train({**document, "device": "cpu"})
    result = train({**document, **on_card(document["stages"], dry=False)})
    for figure in ("losses", "grad_norms"):
        assert result[figure] == pytest.approx(expected[figure], rel=BAR["fp32"])


def test_an_op_sees_the_message_that_was_loaded_before_it(device: CudaDevice) -> None:
    """The op is queued at once: without its wait it would read the value before."""
    for value in range(1, 7):
        message = device.host_buffer(COPIED_BYTES // 4, torch.float32).fill_(value)
        loaded = device.load(message, "previous" if value % 2 else "next")
        assert bool(loaded.eq(value).all())


def test_a_fetch_returns_what_the_ops_made(device: CudaDevice) -> None:
    tensor = torch.ones(COPIED_BYTES // 4, device=device.name)
    for _ in range(4):
        tensor.mul_(2.0)
    device.reach(device.now())
    assert bool(device.copy_out(tensor).eq(16.0).all())


@pytest.mark.usefixtures("device")
def test_loads_and_fetches_run_beside_ops() -> None:
    checks = overlap(dry=False).checks
    assert checks
    assert all(check.ok for check in checks), [f"{check.name}: {check.value}" for check in checks]


@pytest.mark.usefixtures("device")
def test_a_rank_that_shares_a_gpu_stays_within_its_share() -> None:
    whole = torch.cuda.get_device_properties(0).total_memory
    share_bytes = int(share_of_memory(whole, 4) * whole)
    shared = CudaDevice(0, ranks=4)
    held = torch.empty(share_bytes // 2, dtype=torch.uint8, device=shared.name)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(share_bytes, dtype=torch.uint8, device=shared.name)
    assert shared.peak_bytes() >= held.nbytes
