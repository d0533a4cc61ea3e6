"""What the card itself reaches, and whether copies run beside kernels."""

import statistics
import time
from collections.abc import Callable

import torch

from benchmarks.gpu.report import Check, Report
from engine.model.memory import CUDA_CONTEXT_BYTES
from engine.nn.device import CudaDevice

MATRIX = 8192
COPIED_BYTES = 256 * 2**20
REPEATS = 20


def machine(*, dry: bool) -> Report:
    """The card, its rates, and what a process takes of its memory before the first tensor."""
    report = Report(part="machine", checks=[Check(name="torch", value=torch.__version__)])
    if dry:
        return report
    before = torch.cuda.mem_get_info()[0]  # this makes the context
    device = CudaDevice(0)
    properties = torch.cuda.get_device_properties(0)
    a, b = (torch.randn(MATRIX, MATRIX, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    product_s = _seconds(lambda: a @ b)
    whole, free = properties.total_memory, torch.cuda.mem_get_info()[0]
    context = whole - free - torch.cuda.memory_reserved()
    host = device.host_buffer(COPIED_BYTES, torch.uint8)
    there = torch.empty(COPIED_BYTES, dtype=torch.uint8, device="cuda")
    other = torch.empty_like(there)
    rates = {
        "host to device, pinned": COPIED_BYTES / _seconds(lambda: there.copy_(host, non_blocking=True)),
        "device to host, pinned": COPIED_BYTES / _seconds(lambda: host.copy_(there, non_blocking=True)),
        "device memory, read and written": 2 * COPIED_BYTES / _seconds(lambda: other.copy_(there)),
    }
    report.checks += [
        Check(name="GPU", value=f"{properties.name}, {whole / 1e9:.1f} GB"),
        Check(name="bf16 product of 8192³", value=f"{2 * MATRIX**3 / product_s / 1e12:.0f} TFLOP/s"),
        *(Check(name=name, value=f"{rate / 1e9:.1f} GB/s") for name, rate in rates.items()),
        Check(
            name="memory of a process before its first tensor",
            value=f"{context / 1e9:.2f} GB",
            bar=f"at most {CUDA_CONTEXT_BYTES / 1e9:g} GB, as `ranks_per_gpu` counts",
            ok=context <= CUDA_CONTEXT_BYTES,
        ),
        Check(name="free when it began", value=f"{before / 1e9:.1f} GB"),
    ]
    return report


def overlap(*, dry: bool) -> Report:
    """Ops, loads and fetches alone and together, through the device class that ranks use.

    A dry run is on the fake device of the tests: it shows that the calls are right, and no times.
    """
    if not dry:
        return _overlap(MATRIX, COPIED_BYTES, bar=0.8)
    from tests.fake_cuda.patches import fake_cuda  # needs pytest, which a GPU machine may lack

    with fake_cuda() as gpu:
        report = _overlap(64, 4096, bar=None)
    faults = len(gpu.faults)
    report.checks.append(Check(name="faults on the fake device", value=str(faults), bar="0", ok=not faults))
    return report


def _overlap(matrix: int, copied_bytes: int, *, bar: float | None) -> Report:
    report = Report(part="overlap")
    device = CudaDevice(0)
    a = torch.randn(matrix, matrix, device="cuda", dtype=torch.bfloat16)
    host = device.host_buffer(copied_bytes, torch.uint8)
    there = torch.empty(copied_bytes, dtype=torch.uint8, device="cuda")

    def ops() -> None:
        for _ in range(8):
            torch.mm(a, a)

    def beside(copies: Callable[[], object]) -> Callable[[], None]:
        def both() -> None:
            ops()
            copies()

        return both

    def load() -> None:
        device.load(host, "previous")

    def fetch() -> None:
        device.copy_out(there)

    ops_s = _wall_s(device, ops)
    for name, copy in (("load", load), ("fetch", fetch)):
        alone_s, together_s = _wall_s(device, copy), _wall_s(device, beside(copy))
        hidden = (ops_s + alone_s - together_s) / min(ops_s, alone_s)
        report.checks.append(
            Check(
                name=f"{name} of {copied_bytes / 2**20:.4g} MiB beside products",
                value=f"{hidden:.0%} hidden: ops {ops_s * 1e3:.2f} ms, copy {alone_s * 1e3:.2f} ms, "
                f"together {together_s * 1e3:.2f} ms",
                bar="" if bar is None else f"at least {bar:.0%}",
                ok=None if bar is None else hidden >= bar,
            )
        )
    return report


def _wall_s(device: CudaDevice, run: Callable[[], object]) -> float:
    """Median wall seconds of a call until all that it started is done."""
    taken = []
    for _ in range(REPEATS):
        torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def _seconds(run: Callable[[], object]) -> float:
    """Median seconds on the GPU of one call, by events."""
    taken = []
    for _ in range(REPEATS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) / 1e3)
    return statistics.median(taken[3:])
