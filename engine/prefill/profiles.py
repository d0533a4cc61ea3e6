"""Times of prefill by length of the prompt: the shipped profiles of models on GPUs, as measured, and those of
any other model, computed.

The shipped ones have two kinds of row (engine/data/prefill/SOURCE.md): whole prompts as a server measured
them, and one layer's products, to which attention is added from its FLOPs.
"""

import csv
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files

from engine.cluster.gpus import catalogue, gpu
from engine.errors import InputError
from engine.inputs import nearest
from engine.model.kernels import How
from engine.model.presets import preset
from engine.model.stages import roofline_profiles
from engine.model.transformer import Transformer
from engine.plan.stages import machine_of
from engine.prefill.latency import HeldOut, LatencyModel, Point, fit, held_out

# Shorter prompts take as long as reading the weights does; a curve through them bends for all others.
FEWEST_TOKENS = 128
MOST_TOKENS = 16_384  # of a computed time
FEWEST_LENGTHS = 3  # that a fit needs
# Share of its fp16 peak that a GPU reaches in causal attention: an assumption, as the profiles have no
# attention. With it Llama-3-8B takes 1,570 ms for 16,384 tokens on an A100, of which attention 470.
ATTENTION_EFFICIENCY = 0.48


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Times of one model on one kind of GPU: (tokens, ms) of one prompt on `tensor_parallel` GPUs.

    attention_computed : the rows have the products measured and attention added by its FLOPs.
    """

    model: str
    gpu: str
    tensor_parallel: int
    points: tuple[Point, ...]
    attention_computed: bool

    @property
    def latency(self) -> LatencyModel:
        return fit(self.points)

    @property
    def held_out(self) -> HeldOut:
        return held_out(self.points)


@cache
def shipped() -> tuple[Profile, ...]:
    """Every shipped profile."""
    return tuple(_profiles())


def is_shipped(model: str, gpu_type: str, tensor_parallel: int) -> bool:
    """Whether a model was measured on so many GPUs of a type."""
    return any((p.model, p.gpu, p.tensor_parallel) == (model, gpu_type, tensor_parallel) for p in shipped())


def profile(model: str, gpu_type: str, tensor_parallel: int = 1) -> Profile:
    """The shipped profile of a model on a GPU type.

    Raises
    ------
    InputError
        There is none; the message has those that there are.
    """
    known = {f"{p.model} on {p.tensor_parallel} {p.gpu}": p for p in shipped()}
    label = f"{model} on {tensor_parallel} {gpu_type}"
    if label not in known:
        raise InputError("profile", label, "no such profile, " + nearest(label, known))
    return known[label]


def computed(shape: Transformer, gpu_type: str, tensor_parallel: int = 1) -> tuple[Point, ...]:
    """Times of a model without a shipped profile: (tokens, ms) of one prompt through all blocks, from the
    rooflines of the GPU.

    They are within 20 % of the shipped profile of Llama-3-8B on one, two and four A100 from 512 tokens on,
    and 30 % too long on eight.

    Raises
    ------
    InputError
        An unknown GPU type, a `tensor_parallel` that does not divide the heads, or a model whose sequences
        are too short for a fit.
    """
    if gpu_type not in catalogue():
        raise InputError("gpu", gpu_type, "unknown GPU type, " + nearest(gpu_type, catalogue()))
    if shape.heads % tensor_parallel:
        raise InputError("tensor_parallel", tensor_parallel, f"must divide the model's heads = {shape.heads}")
    machine = machine_of(gpu(gpu_type))
    how = How(recompute="none", sequence_parallel=tensor_parallel > 1, fused_attention=True)
    longest = min(MOST_TOKENS, shape.seq)
    lengths = [FEWEST_TOKENS << n for n in range(longest.bit_length()) if FEWEST_TOKENS << n <= longest]
    if len(lengths) < FEWEST_LENGTHS:
        least = FEWEST_TOKENS << FEWEST_LENGTHS - 1
        raise InputError("model.seq", shape.seq, f"at least {least}: times of shorter prompts say too little")

    def ms(tokens: int) -> float:
        blocks = replace(shape, seq=tokens, vocab=0)  # the output matrix meets the last token alone
        profiles = roofline_profiles(blocks, how, (machine,), tp=tensor_parallel, micro_batch=1)
        return 1e3 * profiles[0].forward_s

    return tuple((float(tokens), ms(tokens)) for tokens in lengths)


def attention_ms(model: Transformer, tokens: float, gpu_type: str, tensor_parallel: int) -> float:
    """Causal attention of all layers: scores and values, 2·s²·hidden FLOPs a layer (half of the square)."""
    flops = 2.0 * tokens**2 * model.hidden * model.layers
    return flops / (ATTENTION_EFFICIENCY * gpu(gpu_type).flops(2) * tensor_parallel) * 1e3


def _profiles() -> Iterator[Profile]:
    for (model, gpu_type, degree), points in _grouped("layers.csv").items():
        shape = preset(model)
        whole = tuple(
            (tokens, ms * shape.layers + attention_ms(shape, tokens, gpu_type, degree))
            for tokens, ms in points
        )
        yield Profile(
            model=model, gpu=gpu_type, tensor_parallel=degree, points=whole, attention_computed=True
        )
    for (model, gpu_type, degree), points in _grouped("prompts.csv").items():
        yield Profile(
            model=model, gpu=gpu_type, tensor_parallel=degree, points=tuple(points), attention_computed=False
        )


def _grouped(name: str) -> dict[tuple[str, str, int], list[Point]]:
    text = files("engine").joinpath(f"data/prefill/{name}").read_text(encoding="utf-8")
    points: dict[tuple[str, str, int], list[Point]] = {}
    for row in csv.DictReader(text.splitlines()):
        if int(row["tokens"]) >= FEWEST_TOKENS:
            key = (row["model"], row["gpu"], int(row["tensor_parallel"]))
            points.setdefault(key, []).append((float(row["tokens"]), float(row["ms"])))
    return points
