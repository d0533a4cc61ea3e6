"""One layer's weights and optimizer state as tensors by name, copied out and put back."""

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors import torch as safetensors
from torch import Tensor, nn

from engine.errors import InputError
from engine.job.checkpoint.manifest import Checkpoint
from engine.nn.hugging_face import Slice
from engine.nn.one_rank import ONE_RANK, OneRank
from engine.train.optimizer import MOMENTS, Optimizer
from engine.train.zero import ShardedAdamW

WEIGHTS = "weights."


def copy_of(layer: nn.Module, optimizer: Optimizer, tp: OneRank = ONE_RANK) -> dict[str, Tensor]:
    """Copies in host memory of a layer's weights and of their moments; taken between two iterations.

    Whole ones where `tp` cuts the layer, or replicas share the moments: all those ranks take them together.
    A weight that is a copy of the embedding is left out: it is stored once.
    """
    copies = {}
    for name, parameter in layer.named_parameters():
        if _original(layer, name) is not None:
            continue
        copies[WEIGHTS + name] = _copied(tp.whole(parameter, parameter))
        moments = _moments(optimizer, parameter)
        for moment in MOMENTS:
            copies[f"{moment}.{name}"] = _copied(tp.whole(moments[moment], parameter))
    return copies


def to_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """The safetensors file of a layer."""
    return safetensors.save(dict(tensors))


@torch.no_grad()
def load_into(
    layer: nn.Module, optimizer: Optimizer, checkpoint: Checkpoint, number: int, tp: OneRank = ONE_RANK
) -> None:
    """Put a layer's weights and moments back as they were after the checkpoint's step.

    Raises
    ------
    InputError
        The file is missing, corrupt, or holds other tensors than the layer has.
    """
    own = _tensors(checkpoint, number)
    for name, parameter in layer.named_parameters():
        original = _original(layer, name)
        tensors, at = (own, number) if original is None else (_tensors(checkpoint, 0), 0)
        name = original or name
        parameter.copy_(tp.part(_fitting(tensors, WEIGHTS + name, parameter, checkpoint, at), parameter))
        state = {m: _fitting(tensors, f"{m}.{name}", parameter, checkpoint, at) for m in MOMENTS}
        step = torch.tensor(float(checkpoint.manifest.step), device=parameter.device)
        if isinstance(optimizer, ShardedAdamW):
            optimizer.put_moments(parameter, step, state)
            continue
        moments = {name: tp.part(tensor, parameter).clone() for name, tensor in state.items()}
        optimizer.state[parameter] = {"step": step, **moments}


def _moments(optimizer: Optimizer, parameter: nn.Parameter) -> Mapping[str, Tensor]:
    """AdamW's state of a parameter, whole; all ranks that share it call this."""
    if isinstance(optimizer, ShardedAdamW):
        return optimizer.whole_moments(parameter)
    state: Mapping[str, Tensor] = optimizer.state[parameter]
    return state


def _original(layer: nn.Module, name: str) -> str | None:
    """The name in layer 0 of the weight that this one is a copy of; None where it is none."""
    return layer.original if isinstance(layer, Slice) and name == layer.tied else None


def _tensors(checkpoint: Checkpoint, number: int) -> dict[str, Tensor]:
    try:
        return safetensors.load(checkpoint.layer(number))
    except SafetensorError as error:
        raise InputError(
            "persistence.resume", checkpoint.where, f"layer {number} is not a safetensors file ({error})"
        ) from None


def _fitting(
    tensors: dict[str, Tensor], name: str, like: Tensor, checkpoint: Checkpoint, number: int
) -> Tensor:
    tensor = tensors.get(name)
    if tensor is None or tensor.shape != like.shape or tensor.dtype != like.dtype:
        has = "none" if tensor is None else f"{tuple(tensor.shape)} of {tensor.dtype}"
        allowed = f"layer {number} needs {name} {tuple(like.shape)} of {like.dtype}; the checkpoint has {has}"
        raise InputError("persistence.resume", checkpoint.where, allowed)
    return tensor


def _copied(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True).contiguous()
