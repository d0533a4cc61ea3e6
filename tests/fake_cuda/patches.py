"""Puts the fake device in the place of what production code uses of torch.cuda."""

import contextlib
import functools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils import _device

from engine.nn.layers import rotations
from tests.fake_cuda.gpu import Event, Gpu, Stream
from tests.fake_cuda.tensors import Tensors
from tests.fake_cuda.threads import Threads
from tests.fake_cuda.watching import Watch


@contextlib.contextmanager
def fake_cuda(count: int = 1, memory_bytes: int = 80 * 10**9) -> Iterator[Gpu]:
    """Have torch.cuda be `count` fake devices, and watch the calling thread and all that it starts.

    At the end the run is over: streams that nobody has waited for are faults. Faults raise nothing: a test
    looks at `Gpu.faults` behind the block.
    """
    _device._device_constructors()  # torch notes its factories at the first call: they must be its own
    rotations.cache_clear()  # tensors that are on no fake device
    gpu = Gpu(count, memory_bytes)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in _of_cuda(gpu).items():
            patch.setattr(torch.cuda, name, value)
        Tensors(gpu).patch(patch)
        Threads(gpu).patch(patch)
        with Watch(gpu):
            yield gpu
        gpu.close()
    rotations.cache_clear()


def _of_cuda(gpu: Gpu) -> dict[str, Any]:
    """Names in torch.cuda, and what stands in for them."""

    @contextlib.contextmanager
    def stream(of: Stream) -> Iterator[None]:
        before = gpu.current_stream(of.device)
        gpu.set_stream(of)
        try:
            yield
        finally:
            gpu.set_stream(before)

    def set_device(device: Any) -> None:
        gpu.host.device = gpu.number_of(device)

    def set_fraction(fraction: float, device: Any = None) -> None:
        gpu.limit_bytes[gpu.number_of(device)] = int(fraction * gpu.memory_bytes)

    def synchronize(device: Any = None) -> None:
        for one in gpu.streams:
            if one.device == gpu.number_of(device):
                one.synchronize()

    def register(address: int, size: int, flags: int) -> int:
        gpu.pin(address, size)
        return 0

    return {
        "Stream": functools.partial(Stream, gpu),
        "Event": functools.partial(Event, gpu),
        "stream": stream,
        "set_stream": gpu.set_stream,
        "current_stream": gpu.current_stream,
        "synchronize": synchronize,
        "is_available": lambda: True,
        "device_count": lambda: gpu.count,
        "set_device": set_device,
        "get_device_properties": lambda _: SimpleNamespace(name="fake", total_memory=gpu.memory_bytes),
        "mem_get_info": lambda device=None: gpu.free_and_all_bytes(gpu.number_of(device)),
        "set_per_process_memory_fraction": set_fraction,
        "reset_peak_memory_stats": lambda device=None: gpu.forget_peak(gpu.number_of(device)),
        "max_memory_allocated": lambda device=None: gpu.peak_bytes[gpu.number_of(device)],
        "cudart": lambda: SimpleNamespace(cudaHostRegister=register),
        "check_error": lambda result: None,
    }
