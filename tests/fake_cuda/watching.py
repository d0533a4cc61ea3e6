"""Every op of torch on a thread, with what it reads and writes, handed to the fake device."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode

from tests.fake_cuda.gpu import COPY_BYTES_PER_S, Gpu, Use
from tests.fake_cuda.memory import Block, Extent

aten = torch.ops.aten
OVERWRITE = {aten.copy_, aten.zero_, aten.fill_, aten.normal_, aten.uniform_, aten.random_}
WAIT = {aten._local_scalar_dense, aten.equal, aten.nonzero, aten.masked_select}  # the host needs the result
SHAPES_ALONE = {
    aten.empty_like,
    aten.zeros_like,
    aten.ones_like,
    aten.full_like,
    aten.new_zeros,
    aten.new_empty,
    aten.new_ones,
    aten.new_full,
    aten.new_empty_strided,
}
INDICES_MAY_BE_ON_THE_HOST = {aten.index, aten.index_put_, aten._index_put_impl_}


def _added_product(total: Tensor, left: Tensor, right: Tensor, dtype: torch.dtype, *, out: Tensor) -> Tensor:
    return out.copy_(total + left.to(dtype) @ right.to(dtype))


_ON_CUDA_ALONE: dict[Any, Any] = {aten.addmm.dtype_out: _added_product}  # torch has no such kernel of the CPU


class Watch(TorchDispatchMode):
    """While it is entered on a thread, the ops of that thread are the GPU's or the host's."""

    def __init__(self, gpu: Gpu) -> None:
        super().__init__()
        self._gpu = gpu

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and torch._dynamo takes seconds to import

    def __enter__(self) -> "Watch":
        # Not torch's own: that keeps flags of the process, which threads that come and go leave wrong.
        _push_mode(self)
        return self

    def __exit__(self, *_: object) -> None:
        _pop_mode()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._gpu.closed:
            return func(*args, **kwargs)
        uses = list(_uses(func, args, kwargs))
        self._gpu.before_use(uses)
        if func.overloadpacket is aten.copy_:
            return self._copy(func, args, kwargs)
        tensors = list(_tensors((args, kwargs)))
        on = {block.device for t in tensors if (block := self._gpu.block_of(t))} - {None}
        in_backward = torch._C._current_graph_task_id() != -1
        if not on and not (in_backward and not tensors):
            for use in uses:
                self._gpu.host_uses(Extent.of(use.tensor), writes=use.writes)
            return func(*args, **kwargs)
        device = min(on, default=self._gpu.number_of())
        self._check_devices(func, tensors, device, in_backward)
        result = _ON_CUDA_ALONE.get(func, func)(*args, **kwargs)
        new = self._new(result, device)
        if new:  # an op that may return a view has copied instead
            uses += _uses(func, args, kwargs, of_views=True)
        self._ran(func, uses, new, device)
        return result

    def _new(self, result: Any, device: int) -> list[Block]:
        """The memory of those results of an op that are no views of what was there."""
        gpu = self._gpu
        new = (gpu.allocate(t, device) for t in _tensors(result) if gpu.block_of(t) is None)
        return [block for block in new if block is not None]

    def _ran(self, func: Any, uses: list[Use], new: list[Block], device: int) -> None:
        gpu, stream = self._gpu, self._gpu.current_stream(device)
        if uses or (new and func.overloadpacket not in SHAPES_ALONE):
            gpu.launch(func.overloadpacket.__name__, stream, uses, new)
        if func.overloadpacket in WAIT:
            stream.synchronize()

    def _copy(self, func: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        """A copy, which may be between host and device: only from or to pinned memory nobody waits for it."""
        gpu, (into, source) = self._gpu, args[:2]
        not_blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        blocks = [gpu.block_of(tensor) for tensor in (into, source)]
        devices = [None if block is None else block.device for block in blocks]
        uses = [Use(source, reads=True, writes=False), Use(into, reads=False, writes=True)]
        if devices == [None, None]:
            for use in uses:
                gpu.host_uses(Extent.of(use.tensor), writes=use.writes)
            return func(*args, **kwargs)
        stream = gpu.current_stream(next(device for device in devices if device is not None))
        if None not in devices:
            gpu.launch("copy", stream, uses)
            return func(*args, **kwargs)
        gpu.launch(
            "copy to device" if devices[1] is None else "copy to host", stream, uses, rate=COPY_BYTES_PER_S
        )
        result = func(*args, **kwargs)
        if not (not_blocking and all(blocks)):
            stream.synchronize()
        return result

    def _check_devices(self, func: Any, tensors: Sequence[Tensor], device: int, in_backward: bool) -> None:
        if func.overloadpacket in INDICES_MAY_BE_ON_THE_HOST:
            return
        for tensor in tensors:
            block = self._gpu.block_of(tensor)
            if block is not None and block.device is not None:
                continue
            if tensor.dim() == 0 or tensor.numel() == 0:
                continue
            if in_backward and block is None:  # zeros that autograd made in C++ where the gradient is
                self._gpu.allocate(tensor, device)
                continue
            raise RuntimeError(f"Expected all tensors to be on the same device: {func} has one on the host")


@contextlib.contextmanager
def unwatched() -> Iterator[None]:
    """Ops of the calling thread are nobody's, whether it is watched or not."""
    mode = _pop_mode() if torch._C._len_torch_dispatch_stack() else None
    try:
        yield
    finally:
        if mode is not None:
            _push_mode(mode)


def _tensors(tree: Any) -> Iterator[Tensor]:
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, list | tuple):
        for item in tree:
            yield from _tensors(item)
    elif isinstance(tree, dict):
        for item in tree.values():
            yield from _tensors(item)


@cache
def _roles(func: Any) -> list[tuple[int, str, bool, bool]]:
    """(place, name, whether it is only viewed, whether it is written) of each argument of an op."""
    return [
        (place, argument.name, alias is not None and not alias.is_write, alias is not None and alias.is_write)
        for place, argument in enumerate(func._schema.arguments)
        for alias in [argument.alias_info]
    ]


def _uses(func: Any, args: Sequence[Any], kwargs: dict[str, Any], *, of_views: bool = False) -> Iterator[Use]:
    """What an op uses of its arguments; with `of_views`, of those alone that it may return a view of."""
    if func.overloadpacket in SHAPES_ALONE:
        return
    for place, name, is_viewed, writes in _roles(func):
        if is_viewed is of_views:
            for tensor in _tensors(args[place] if place < len(args) else kwargs.get(name)):
                yield Use(tensor, reads=not (writes and func.overloadpacket in OVERWRITE), writes=writes)
