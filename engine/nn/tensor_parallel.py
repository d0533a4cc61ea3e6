"""Tensor parallelism (TP): the ranks of one node that compute a stage together, by torch's own means.

Every layer is cut as Megatron-LM cuts it (Shoeybi et al. 2019, §3): what widens by output columns, what
leads back into the residual stream by input rows, heads and the vocabulary among the ranks; norms and GPT's
position embedding are on all of them. Layers of transformers are cut by their own plan, which says the same.
`parallelize_module` makes DTensors of the weights and puts the collectives into the passes. All ranks of a
stage follow one order of ops, and so of collectives.

Rank 0 of a group, the lead, alone talks to other stages; what comes in for it is broadcast. The group is
torch's default group of its processes, over gloo, or NCCL on CUDA (never run: it needs two GPUs).
"""

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleOutput,
    RowwiseParallel,
    parallelize_module,
)

from engine.control.silence import WAIT_S
from engine.errors import InputError
from engine.job.launch import RankAssignment
from engine.nn.device import Device
from engine.nn.hugging_face import Slice
from engine.nn.layers import Embedding, GptBlock, Head, LlamaBlock
from engine.nn.one_rank import OneRank

LEAD = 0
QKV = 3  # queries, keys and values stand in one matrix of GPT's block


class TpGroup(OneRank):
    """The `ranks` of the stage of rank `me`, which meet at `store`; `device` is where this one computes.

    Raises InputError where torch has no NCCL for them on CUDA.
    """

    def __init__(self, me: RankAssignment, ranks: int, store: Any, device: Device) -> None:
        if device.apart and not dist.is_nccl_available():
            raise InputError("cell.tp", ranks, "1 on device cuda here: this build of torch has no NCCL")
        self.leads = me.shard == LEAD
        self._ranks, self._device = ranks, device.name
        self._packed: set[int] = set()  # ids of the parameters that hold queries, keys and values
        # torch keeps a record of the latest 2,000 collectives, 2 kB each; ours are in the spans already.
        os.environ.setdefault("TORCH_FR_BUFFER_SIZE", "0")
        dist.init_process_group(
            "nccl" if device.apart else "gloo",
            rank=me.shard,
            world_size=ranks,
            store=dist.PrefixStore(f"tp/{me.pipeline}/{me.stage}", store),
            timeout=timedelta(seconds=WAIT_S),
            device_id=device.name if device.apart else None,
        )
        self._mesh = init_device_mesh(device.name.type, (ranks,))

    def cut(self, layers: Sequence[nn.Module]) -> None:
        for layer in layers:
            if isinstance(layer, GptBlock):
                for parameter in layer.qkv.parameters():
                    parameter.data = _by_rank(parameter.data, self._ranks)
            parallelize_module(layer, self._mesh, _plan_of(layer), src_data_rank=None)
            for parameter in layer.parameters():
                if isinstance(parameter, DTensor):
                    parameter.data = parameter.data.clone()  # it was a view, which holds the whole tensor
            if isinstance(layer, GptBlock):
                self._packed |= {id(parameter) for parameter in layer.qkv.parameters()}
            if isinstance(layer, GptBlock | LlamaBlock):
                layer.heads //= self._ranks
            if isinstance(layer, LlamaBlock):
                layer.kv_heads //= self._ranks

    def take(self, buffer: Tensor, load: Callable[[Tensor], Tensor]) -> Tensor:
        taken = load(buffer) if self.leads else torch.empty_like(buffer, device=self._device)
        dist.broadcast(taken, LEAD)
        return taken

    def agreed(self, square_sum: float, loss: float) -> tuple[float, float]:
        numbers = torch.tensor([square_sum, loss], dtype=torch.float64, device=self._device)
        dist.broadcast(numbers, LEAD)
        square_sum, loss = numbers.tolist()
        return square_sum, loss

    def kinds(self, parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
        return [[p for p in parameters if isinstance(p, DTensor) is cut] for cut in (False, True)]

    def local(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def gradient(self, parameter: nn.Parameter, local: Tensor) -> Tensor:
        if not isinstance(parameter, DTensor):
            return local
        return DTensor.from_local(
            local,
            self._mesh,
            parameter.placements,
            run_check=False,
            shape=parameter.shape,
            stride=parameter.stride(),
        )

    def square_sum(self, flat: Tensor, parameters: Sequence[nn.Parameter]) -> float:
        parts = flat.split([self.local(parameter).numel() for parameter in parameters])
        sums = torch.stack([torch.dot(part, part) for part in parts]).double()
        is_cut = torch.tensor([_is_cut(parameter) for parameter in parameters], device=self._device)
        cut = sums[is_cut].sum()
        dist.all_reduce(cut)
        return float(cut + sums[~is_cut].sum())  # what all ranks have counts once

    @torch.no_grad()
    def whole(self, tensor: Tensor, parameter: nn.Parameter) -> Tensor:
        if not isinstance(tensor, DTensor):
            return tensor
        full = tensor.full_tensor()
        return _by_kind(full, self._ranks) if id(parameter) in self._packed else full

    def part(self, whole: Tensor, parameter: nn.Parameter) -> Tensor:
        whole = whole.to(self._device)
        if not isinstance(parameter, DTensor):
            return whole
        if id(parameter) in self._packed:
            whole = _by_rank(whole, self._ranks)
        return distribute_tensor(whole, self._mesh, parameter.placements, src_data_rank=None)


def _is_cut(parameter: nn.Parameter) -> bool:
    """Whether each rank has a part of its own; biases of what leads back are DTensors too, but whole ones."""
    return isinstance(parameter, DTensor) and not parameter.placements[0].is_replicate()


def _plan_of(layer: nn.Module) -> dict[str, ParallelStyle]:
    """How each module of a layer is cut. Sums over the ranks: one forward and one backward a branch."""
    if isinstance(layer, Slice):
        return _plan_of_slice(layer)
    if isinstance(layer, Embedding):
        return {"token": RowwiseParallel(input_layouts=Replicate())}
    if isinstance(layer, Head):
        return {"norm": _branched(), "project": ColwiseParallel(output_layouts=Replicate())}
    split = ("qkv", "widen") if isinstance(layer, GptBlock) else ("query", "key", "value", "gate", "widen")
    return {
        "attention_norm": _branched(),
        "mlp_norm": _branched(),
        "project": RowwiseParallel(),
        "narrow": RowwiseParallel(),
        **{name: ColwiseParallel() for name in split},
    }


def _plan_of_slice(layer: Slice) -> dict[str, ParallelStyle]:
    """By the plan that the model's own config has for tensor parallelism.

    Norms that are modules of a decoder layer itself stand in front of what is cut by columns.
    """
    if layer.tp_plan is None:
        return {name: _end_of_slice(module) for name, module in layer.named_modules() if _has_weight(module)}
    styles = {"colwise": ColwiseParallel, "rowwise": RowwiseParallel}
    cut = {f"part.{name}": styles[style]() for name, style in layer.tp_plan.items()}
    norms = (name for name, module in layer.part.named_children() if _has_weight(module))
    return cut | {f"part.{name}": _branched() for name in norms}


def _has_weight(module: nn.Module) -> bool:
    return any(True for _ in module.parameters(recurse=False))


def _end_of_slice(module: nn.Module) -> ParallelStyle:
    if isinstance(module, nn.Embedding):
        return RowwiseParallel(input_layouts=Replicate())
    return ColwiseParallel(output_layouts=Replicate()) if isinstance(module, nn.Linear) else _branched()


def _branched() -> ParallelStyle:
    """Of a norm: gradients of all that read its output are summed over the ranks together."""
    return PrepareModuleOutput(
        output_layouts=Replicate(), desired_output_layouts=Replicate(), use_local_output=False
    )


def _by_rank(tensor: Tensor, ranks: int) -> Tensor:
    """Rows in the order kind (query, key, value), rank → rank, kind: so that a cut gives each its heads."""
    rows, rest = tensor.shape[0], tensor.shape[1:]
    return tensor.view(QKV, ranks, rows // (QKV * ranks), *rest).transpose(0, 1).reshape(rows, *rest)


def _by_kind(tensor: Tensor, ranks: int) -> Tensor:
    """The inverse of `_by_rank`."""
    rows, rest = tensor.shape[0], tensor.shape[1:]
    return tensor.view(ranks, QKV, rows // (QKV * ranks), *rest).transpose(0, 1).reshape(rows, *rest)
