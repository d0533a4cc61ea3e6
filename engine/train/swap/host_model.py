"""The whole model on the host: weights and gradients of every sub-model in flat buffers, one optimizer.

Only parameters pass through the device; AdamW runs here, as ATOM's CPU AdamW does. A sub-model on the device
is its parameters in a buffer there, bound to the host's modules for a call (torch.func.functional_call).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.job.job import TrainJob
from engine.nn.device import Device
from engine.nn.model import PARAMETER_DTYPES, Chunk, digest
from engine.plan.swap.layers import SubModel
from engine.train.optimizer import MOMENTS, adamw


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A parameter of a sub-model and where it lies in the sub-model's flat buffer."""

    name: str
    first: int
    shape: torch.Size

    def of(self, flat: Tensor) -> Tensor:
        return flat[self.first : self.first + self.shape.numel()].view(self.shape)


class HostModel:
    """The sub-models `subs` of a job.

    Attributes
    ----------
    chunks : the modules of each sub-model; their parameters are views of `weights`.
    weights, gradients : a flat buffer a sub-model; all gradients lie in `flat`, one after the other.
    """

    def __init__(self, job: TrainJob, subs: Sequence[SubModel], device: Device) -> None:
        dtype = PARAMETER_DTYPES[job.device.dtype]
        self.chunks = [Chunk(job, list(range(sub.first, sub.last + 1))) for sub in subs]
        sizes = [sum(p.numel() for p in chunk.parameters()) for chunk in self.chunks]
        self.weights = [device.host_buffer(size, dtype) for size in sizes]
        self.flat = torch.zeros(sum(sizes), dtype=dtype)
        self.gradients = list(self.flat.split(sizes))
        self.pieces = [_laid(chunk) for chunk in self.chunks]
        for chunk, pieces, weights, gradients in zip(
            self.chunks, self.pieces, self.weights, self.gradients, strict=True
        ):
            for parameter, piece in zip(chunk.parameters(), pieces, strict=True):
                view = piece.of(weights)
                view.copy_(parameter.detach())
                parameter.data = view
                parameter.grad = piece.of(gradients)
        self.optimizer = adamw(self.layers.values(), job.optimizer)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All parameters, in the order of layers."""
        return [parameter for chunk in self.chunks for parameter in chunk.parameters()]

    @property
    def layers(self) -> dict[int, nn.Module]:
        """The layers by number."""
        return {
            number: layer
            for chunk in self.chunks
            for number, layer in zip(chunk.numbers, chunk.layers, strict=True)
        }

    def digests(self) -> dict[int, str]:
        """SHA-256 of each layer's parameters, by layer number."""
        return {number: digest(layer) for number, layer in self.layers.items()}

    @torch.no_grad()
    def state(self) -> Tensor:
        """Weights and moments in one flat buffer, for a worker that joins; moments are 0 before any step."""
        rows = [weights.view(-1) for weights in self.weights]
        for moment in MOMENTS:
            for parameter in self.parameters:
                value = self.optimizer.state[parameter].get(moment)
                rows.append(
                    torch.zeros(parameter.numel(), dtype=parameter.dtype) if value is None else value.view(-1)
                )
        return torch.cat(rows)

    @torch.no_grad()
    def restore(self, state: Tensor, steps: int) -> None:
        """Take over what `state` gave after so many steps of the optimizer."""
        sizes = [weights.numel() for weights in self.weights]
        parameters = self.parameters
        moments = [parameter.numel() for parameter in parameters]
        pieces = iter(state.split([*sizes, *moments, *moments]))
        for weights in self.weights:
            weights.copy_(next(pieces))
        for parameter in parameters:
            self.optimizer.state[parameter] = {"step": torch.tensor(float(steps), dtype=torch.float32)}
        for moment in MOMENTS:
            for parameter in parameters:
                self.optimizer.state[parameter][moment] = next(pieces).view_as(parameter).clone()


def _laid(chunk: Chunk) -> tuple[Piece, ...]:
    pieces, first = [], 0
    for name, parameter in chunk.named_parameters():
        pieces.append(Piece(name=name, first=first, shape=parameter.shape))
        first += parameter.numel()
    return tuple(pieces)
