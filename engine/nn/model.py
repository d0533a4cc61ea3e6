"""The real model of a run, split into the chunks of pipeline stages: a GPT or Llama of our own, any dense
decoder of transformers, or the layers of an installed package.

The weights of a layer depend on the seed and the layer's number only, so that every split of the same job
starts from the same model. Layer 0 is the embedding, 1 … L the blocks, L + 1 the last norm and the head.
"""

import hashlib
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.func import functional_call
from torch.nn import functional

from engine.job.job import TrainJob
from engine.job.model_document import ConfigModel, ModuleModel, TrainModel
from engine.nn import hugging_face, own_module
from engine.nn.cast import CastWeights
from engine.nn.first_weights import read_layer
from engine.nn.layers import Embedding, GptBlock, Head, LlamaBlock
from engine.nn.one_rank import ONE_RANK, OneRank
from engine.nn.products import BackwardParts
from engine.schedule.layers import layers_of_stages
from engine.schedule.traversal import Traversal, straight

# What a stage computes with and sends, and what its weights, gradients and moments are kept in.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp64": torch.float64}
PARAMETER_DTYPES = {"fp32": torch.float32, "bf16": torch.float32, "fp64": torch.float64}
INIT_STD = 0.02
INTO_RESIDUAL = ("project", "narrow")  # of a block: what is added to the residual stream

Taped = tuple[GradientEdge, list[nn.Parameter]]  # where a module's output is in the graph, and its weights


class Tied(NamedTuple):
    """A parameter that is also at the other end of the model; of the two, one is the copy."""

    parameter: nn.Parameter
    is_copy: bool


class Chunk(nn.Module):
    """The layers at one place of a traversal, in order; `numbers` are their places in the whole model.

    While `tape` is a list, every module with weights notes there where its output stands in the graph: that
    lets a backward pass be split into its input part and its weight part without computing either twice.

    cast : after `keep_cast`, the copies of each layer's weights.  parts : of a backward pass, those that are
        computed now.
    """

    def __init__(self, job: TrainJob, numbers: list[int]) -> None:
        super().__init__()
        self.numbers = numbers
        self.dtype = DTYPES[job.device.dtype]
        self.layers = nn.ModuleList(build_layer(job.model, number, job.optimizer.seed) for number in numbers)
        self.to(PARAMETER_DTYPES[job.device.dtype])
        self.tape: list[Taped] | None = None
        self.cast: list[CastWeights] = []  # of each layer, once `keep_cast` was called
        self.parts = BackwardParts()
        for module in self.modules():
            if any(True for _ in module.parameters(recurse=False)):
                module.register_forward_hook(self._note)

    def forward(self, x: Tensor) -> Tensor:
        for i, layer in enumerate(self.layers):
            output = functional_call(layer, self.cast[i].copies, (x,)) if self.cast else layer(x)
            x = output.to(self.dtype)
        return x

    def keep_cast(self) -> None:
        """From now on compute with copies of the weights, where these are of a wider type than `dtype`.

        Called once the weights are on their device. Who changes them later calls `Stage.cast_again`.
        """
        if any(parameter.dtype is not self.dtype for parameter in self.parameters()):
            self.cast = [CastWeights(layer, self.dtype, self.parts) for layer in self.layers]

    def _note(self, module: nn.Module, _: tuple[Tensor, ...], output: Tensor) -> None:
        if self.tape is not None:
            self.tape.append((get_gradient_edge(output), list(module.parameters(recurse=False))))


class Stage(nn.Module):
    """The model chunks of one GPU; `numbers` and `layers` are those of all of them, chunk after chunk."""

    def __init__(self, job: TrainJob, stage: int, traversal: Traversal | None = None) -> None:
        super().__init__()
        traversal = traversal or straight(job.cell.stages)
        layers = layers_of_stages(job.model.layers, traversal, job.cell.layers_per_stage)
        self.chunks = nn.ModuleList(Chunk(job, numbers) for numbers in layers[stage])

    def keep_cast(self) -> None:
        """Have every chunk compute with copies of its weights (`Chunk.keep_cast`)."""
        for chunk in self.chunks:
            chunk.keep_cast()  # type: ignore[operator]

    def cast_again(self) -> None:
        """Take over weights that have changed into the copies that are computed with, if there are any."""
        for chunk in self.chunks:
            for cast in chunk.cast:  # type: ignore[union-attr]
                cast.again()

    def when_added(self, weight: nn.Parameter, tell: Callable[[], None]) -> None:
        """Tell of each gradient that is added to a weight."""
        if not any(cast.when_added(weight, tell) for chunk in self.chunks for cast in chunk.cast):  # type: ignore[union-attr]
            weight.register_post_accumulate_grad_hook(lambda _: tell())

    @property
    def numbers(self) -> list[int]:
        return [number for chunk in self.chunks for number in chunk.numbers]  # type: ignore[union-attr]

    @property
    def layers(self) -> list[nn.Module]:
        return [layer for chunk in self.chunks for layer in chunk.layers]  # type: ignore[union-attr]

    @property
    def tied(self) -> list[Tied]:
        """What is here of a matrix that both ends of the model share: one copy, or both."""
        ends = [layer for layer in self.layers if isinstance(layer, hugging_face.Slice) and layer.tied]
        return [Tied(end.get_parameter(str(end.tied)), end.original is not None) for end in ends]

    def digests(self, tp: OneRank = ONE_RANK) -> dict[int, str]:
        """SHA-256 of each layer's parameters as little-endian fp32, by layer number."""
        return {number: digest(layer, tp) for number, layer in zip(self.numbers, self.layers, strict=True)}


def build_layer(shape: TrainModel | ConfigModel, number: int, seed: int) -> nn.Module:
    """Return layer `number` of the model with its initial fp32 weights.

    Raises InputError where this machine cannot build it, or cannot read the weights that it begins with.
    """
    if isinstance(shape, ConfigModel):
        decoder = hugging_face.decoder_of(shape)
        if shape.init is not None:
            return read_layer(decoder, number, shape.init)
        return decoder.drawn(number, partial(_layer_seed, seed))
    if isinstance(shape, ModuleModel):
        return own_module.drawn(shape, number, partial(_layer_seed, seed))
    layer: nn.Module
    if number == 0:
        layer = Embedding(shape)
    elif number <= shape.layers:
        layer = LlamaBlock(shape) if shape.family == "llama" else GptBlock(shape)
    else:
        layer = Head(shape)
    _initialise(layer, shape, torch.Generator().manual_seed(_layer_seed(seed, number)))
    return layer


def _layer_seed(seed: int, number: int) -> int:
    digest = hashlib.sha256(f"{seed}/{number}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


@torch.no_grad()
def _initialise(layer: nn.Module, shape: TrainModel, generator: torch.Generator) -> None:
    """Normal(0, 0.02); projections back into the residual stream scaled by 1/√(2L) as in GPT-2."""
    residual_std = INIT_STD / (2 * shape.layers) ** 0.5
    for name, parameter in layer.named_parameters():
        if "norm" in name:
            parameter.fill_(1.0 if name.endswith("weight") else 0.0)
        elif name.endswith("bias"):
            parameter.zero_()
        else:
            into_residual = not isinstance(layer, Embedding | Head) and name.startswith(INTO_RESIDUAL)
            parameter.normal_(0.0, residual_std if into_residual else INIT_STD, generator=generator)


def digest(layer: nn.Module, tp: OneRank = ONE_RANK) -> str:
    """SHA-256 of a layer's parameters as little-endian fp32, hex; of the whole layer where `tp` cuts it."""
    sha = hashlib.sha256()
    for parameter in layer.parameters():
        whole = tp.whole(parameter.detach(), parameter)
        sha.update(whole.to("cpu", torch.float32).contiguous().numpy().tobytes())
    return sha.hexdigest()


def params_sha256(digests: dict[int, str]) -> str:
    """One SHA-256 for the whole model: over the layers' digests (hex, by line) in layer order."""
    return hashlib.sha256("\n".join(digests[number] for number in sorted(digests)).encode()).hexdigest()


def loss_of(logits: Tensor, targets: Tensor, counted: int | None = None) -> Tensor:
    """Mean cross entropy per token, in nats; of bf16 logits in fp32.

    counted : targets of the whole step that count (≥ 0). The loss is then the part of the step's mean that
        those here make: what microbatches and replicas give adds up, however many tokens count in each.
    """
    logits = logits.float() if logits.dtype is torch.bfloat16 else logits
    if counted is None:
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum") / max(
        counted, 1
    )
