"""What the GPUs of this node do now.

CUDA GPUs: the driver's figures, by NVML (https://docs.nvidia.com/deploy/nvml-api). CPU and emulated GPUs: the
memory of the processes whose ranks stand for them.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import psutil
import pynvml

from engine.job.events.base import Emit
from engine.job.events.gpus import GpuFigures, Gpus

log = logging.getLogger(__name__)

PERIOD_S = 5.0
Read = Callable[[], list[GpuFigures]]


class Nvml:
    """The figures of some CUDA GPUs, which are known by their UUIDs: NVML numbers GPUs in another order.

    A machine without NVML gives none.
    """

    def __init__(self, uuids: Sequence[str]) -> None:
        self._uuids = uuids
        self._is_open = False

    def read(self) -> list[GpuFigures]:
        """The figures of all GPUs, in the order of the UUIDs; None for each figure that NVML refuses."""
        if not self._is_open:
            try:
                pynvml.nvmlInit()
            except pynvml.NVMLError as error:
                log.debug("NVML cannot be used: %s", error)
                return []
            self._is_open = True
        return [_figures(gpu, uuid) for gpu, uuid in enumerate(self._uuids)]


def _figures(gpu: int, uuid: str) -> GpuFigures:
    handle = _asked(pynvml.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}")
    if handle is None:
        return GpuFigures(gpu=gpu)
    rates, memory = _asked(pynvml.nvmlDeviceGetUtilizationRates, handle), _asked_memory(handle)
    watts = _asked(pynvml.nvmlDeviceGetPowerUsage, handle)
    return GpuFigures(
        gpu=gpu,
        utilization=None if rates is None else min(1.0, rates.gpu / 100),
        memory_bytes=None if memory is None else memory.used,
        memory_total_bytes=None if memory is None else memory.total,
        temperature_c=_temperature(handle),
        power_w=None if watts is None else watts / 1e3,  # NVML says milliwatts
    )


def _asked_memory(handle: Any) -> Any:
    # The second version does not count what the driver reserves for itself as used.
    second = _asked(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return _asked(pynvml.nvmlDeviceGetMemoryInfo, handle) if second is None else second


def _temperature(handle: Any) -> float | None:
    sensor = pynvml.NVML_TEMPERATURE_GPU
    celsius = _asked(pynvml.nvmlDeviceGetTemperatureV, handle, sensor)
    if celsius is None:  # a driver that has the older question only
        celsius = _asked(pynvml.nvmlDeviceGetTemperature, handle, sensor)
    return None if celsius is None else float(celsius)


def _asked(question: Callable[..., Any], *about: Any) -> Any:
    """The answer of NVML; None where it has none: the card or the driver does not support the question."""
    try:
        return question(*about)
    except pynvml.NVMLError:
        return None


def process_memory(processes: Iterable[tuple[int, int]]) -> list[GpuFigures]:
    """Memory of the processes that stand for GPUs, given as (GPU, process id).

    A process that has ended is left out.
    """
    by_process: dict[int, int] = {}
    for gpu, pid in processes:
        with contextlib.suppress(psutil.Error):
            by_process[gpu] = by_process.get(gpu, 0) + psutil.Process(pid).memory_info().rss
    return [GpuFigures(gpu=gpu, memory_bytes=rss) for gpu, rss in sorted(by_process.items())]


class GpuWatch:
    """Reports the figures every 5 s in a thread of its own, as long as there are any."""

    def __init__(self, read: Read, publish: Emit, period_s: float = PERIOD_S) -> None:
        self._read = read
        self._publish = publish
        self._period_s = period_s
        self._had_any = False
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpus", daemon=True)

    def start(self) -> None:
        """Begin to report."""
        self._thread.start()

    def stop(self) -> None:
        """End; a report under way is not waited for."""
        self._stopping.set()

    def report(self) -> None:
        """Report once; that there is nothing any more is said once too."""
        figures = self._read()
        if figures or self._had_any:
            self._publish(Gpus(gpus=tuple(figures), t=time.time()))
        self._had_any = bool(figures)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.report()
            except Exception:  # figures are a convenience: whatever fails here must not end them for good
                log.exception("the figures of the GPUs cannot be read")
            self._stopping.wait(self._period_s)
