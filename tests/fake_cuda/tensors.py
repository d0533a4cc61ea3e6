"""Tensors that are on the fake device: made there, moved there and back, and read by the host."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.fake_cuda.gpu import Gpu
from tests.fake_cuda.memory import Extent

FACTORIES = ("empty", "zeros", "ones", "full", "arange", "tensor", "randn", "rand", "randint")
_real_device = torch._C.TensorBase.device.__get__
_to, _numpy, _tolist, _empty = Tensor.to, Tensor.numpy, Tensor.tolist, torch.empty


class HostGenerator(torch.Generator):
    """Draws on the host, whatever device it is asked for."""

    def __new__(cls, device: Any = None) -> "HostGenerator":
        return super().__new__(cls)


class Tensors:
    """The methods of torch's tensors and its factories that know of devices."""

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        """Put them in place until `patch` is undone."""
        for name, value in {
            "device": property(self.device),
            "is_cuda": property(lambda tensor: self.device(tensor).type == "cuda"),
            "to": lambda tensor, *args, **kwargs: self.to(tensor, *args, **kwargs),
            "cpu": lambda tensor: self.to(tensor, "cpu"),
            "numpy": lambda tensor, **kwargs: self.numpy(tensor, **kwargs),
            "tolist": lambda tensor: _tolist(self.to(tensor, "cpu")),
            "record_stream": lambda tensor, stream: self._gpu.record_stream(tensor, stream),
        }.items():
            patch.setattr(Tensor, name, value, raising=False)
        patch.setattr(torch, "Generator", HostGenerator)
        for name in FACTORIES:
            patch.setattr(torch, name, self.factory(getattr(torch, name)))

    def device(self, tensor: Tensor) -> torch.device:
        """Where a tensor is."""
        real = _real_device(tensor)
        block = self._gpu.block_of(tensor) if real.type == "cpu" else None
        return real if block is None or block.device is None else torch.device("cuda", block.device)

    def to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Stands in for Tensor.to: a tensor that changes places is copied on the current stream."""
        copies = kwargs.pop("copy", False)
        args = tuple(self.device(arg) if isinstance(arg, Tensor) else arg for arg in args)
        target, dtype, not_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)
        if target is not None and target.type == "cuda":
            target = torch.device("cuda", self._gpu.number_of(target))
        here = self.device(tensor)
        if target is None or target == here:
            return _to(tensor, dtype or tensor.dtype, copy=copies)
        if "cuda" not in (here.type, target.type):
            return _to(tensor, target, dtype or tensor.dtype, copy=copies)
        tensor = _to(tensor, dtype or tensor.dtype)
        into = _empty(tensor.shape, dtype=tensor.dtype)
        if target.type == "cuda":
            self._gpu.allocate(into, target.index)
        return into.copy_(tensor, non_blocking=not_blocking)

    def numpy(self, tensor: Tensor, **kwargs: Any) -> Any:
        """Stands in for Tensor.numpy: the host reads all of it. Raises TypeError for one on a device."""
        if self.device(tensor).type == "cuda":
            raise TypeError("can't convert a tensor of a CUDA device to numpy: use Tensor.cpu() first")
        self._gpu.host_uses(Extent.of(tensor), writes=False)
        return _numpy(tensor, **kwargs)

    def factory(self, make: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """What makes tensors as `make` does, on a fake device and in pinned memory too."""

        @functools.wraps(make)
        def made(*args: Any, device: Any = None, pin_memory: bool = False, **kwargs: Any) -> Tensor:
            if device is not None and torch.device(device).type == "cuda":
                tensor, number = make(*args, **kwargs), self._gpu.number_of(device)
                block = self._gpu.allocate(tensor, number)
                if block is not None and make is not _empty:
                    self._gpu.launch(make.__name__, self._gpu.current_stream(number), (), [block])
                return tensor
            tensor = make(*args, **kwargs) if device is None else make(*args, device=device, **kwargs)
            if pin_memory:
                self._gpu.allocate(tensor, None)
            return tensor

        return made
