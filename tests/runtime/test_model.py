"""Shapes count what the modules hold; Llama's block is its formulas; learning rates follow their schedule."""

import math
from collections import Counter
from functools import partial

import pytest
import torch
from torch import Tensor

from engine.errors import InputError
from engine.inputs import parse
from engine.job.all_reduce import stage_parameters
from engine.job.learning_rate import LearningRateSchedule
from engine.job.model_document import TrainModel
from engine.nn.layers import LlamaBlock
from engine.nn.model import Stage, build_layer
from engine.schedule.layers import layers_of_stages
from engine.schedule.traversal import Traversal, straight
from tests.runtime.jobs import job

LLAMA = {"family": "llama", "layers": 5, "hidden": 24, "heads": 6, "kv_heads": 2, "ffn": 40, "seq": 11}
GPT = {"layers": 5, "hidden": 24, "heads": 6, "seq": 11}


@pytest.mark.parametrize("shape", [GPT, LLAMA, {**GPT, "ffn": 50}])
def test_parameters_are_counted_as_they_are(shape: dict) -> None:
    model = parse(TrainModel, shape)
    layers = [build_layer(model, number, 0) for number in range(model.layers + 2)]
    assert sum(p.numel() for layer in layers for p in layer.parameters()) == model.shape.parameters
    of = job(model=shape)
    held = [sum(p.numel() for p in Stage(of, stage).parameters()) for stage in range(of.cell.stages)]
    assert held == [stage_parameters(of, stage) for stage in range(of.cell.stages)]


@pytest.mark.parametrize("shape", [GPT, LLAMA])
def test_weights_cast_once_a_step_give_the_same_bits_as_cast_for_each_microbatch(shape: dict) -> None:
    of = job(model=shape, dtype="bf16", stages=1, dc_of_stage=[0])
    with_casts, plain = Stage(of, 0), Stage(of, 0)
    with_casts.keep_cast()
    optimizers = [torch.optim.AdamW(stage.parameters(), lr=0.1, fused=True) for stage in (with_casts, plain)]
    tokens = torch.arange(4 * 11).view(4, 11) % 256

    def logits(stage: Stage) -> Tensor:
        return stage.chunks[0](tokens)

    for _ in range(2):
        for stage in (with_casts, plain):
            for microbatch in tokens.chunk(2):
                stage.chunks[0](microbatch).float().square().mean().backward()
        for one, other in zip(with_casts.parameters(), plain.parameters(), strict=True):
            assert one.grad.dtype is torch.float32
            assert torch.equal(one.grad, other.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        assert not torch.equal(
            logits(with_casts), logits(plain)
        )  # the step changed weights, not yet the copies
        with_casts.cast_again()
        assert torch.equal(logits(with_casts), logits(plain))


@pytest.mark.parametrize("shape", [GPT, LLAMA])
def test_a_backward_pass_in_two_parts_adds_each_gradient_of_cast_weights_once(shape: dict) -> None:
    of = job(model=shape, dtype="bf16", stages=1, dc_of_stage=[0])
    tokens = torch.arange(2 * 11).view(2, 11) % 256
    whole, parts = Stage(of, 0), Stage(of, 0)
    calls: Counter[str] = Counter()
    for stage in (whole, parts):
        stage.keep_cast()
    for name, weight in parts.named_parameters():
        parts.when_added(weight, partial(calls.update, [name]))
    whole.chunks[0](tokens).float().square().mean().backward()

    parts.chunks[0].tape = tape = []
    loss = parts.chunks[0](tokens).float().square().mean()
    with parts.chunks[0].parts.only("inputs"):
        gradients = torch.autograd.grad(loss, [edge for edge, _ in tape], retain_graph=True)
    assert not calls
    with parts.chunks[0].parts.only("weights"):
        for (edge, weights), gradient in zip(reversed(tape), reversed(gradients), strict=True):
            torch.autograd.backward((edge,), (gradient,), inputs=weights)
    assert calls == Counter(name for name, _ in parts.named_parameters())
    for one, other in zip(parts.parameters(), whole.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


def test_full_precision_has_no_copies_of_weights() -> None:
    stage = Stage(job(model=GPT), 0)
    stage.keep_cast()
    assert not any(chunk.cast for chunk in stage.chunks)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kv_heads": 4}, "kv_heads.*divide heads"),
        ({"hidden": 18}, "heads.*even"),
        ({"family": "mamba"}, "family"),
        ({"heads": 5}, "heads.*divide hidden"),
    ],
)
def test_shapes_that_are_none_are_refused(change: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse(TrainModel, {**LLAMA, **change})


def turned(x: Tensor) -> Tensor:
    """Rotary positions by complex numbers: entry i and i + half are one number, turned by its angle."""
    seq, size = x.shape[-2:]
    pairs = torch.complex(x[..., : size // 2], x[..., size // 2 :])
    speed = torch.tensor([10_000.0 ** (-2 * i / size) for i in range(size // 2)], dtype=x.dtype)
    angle = torch.arange(seq, dtype=x.dtype)[:, None] * speed
    result = pairs * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((result.real, result.imag), dim=-1)


def llama_block(block: LlamaBlock, x: Tensor, heads: int, kv_heads: int) -> Tensor:
    def norm(y: Tensor, weight: Tensor) -> Tensor:
        return y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight

    seq, hidden = x.shape
    size = hidden // heads
    y = norm(x, block.attention_norm.weight)
    query = turned((y @ block.query.weight.T).view(seq, heads, size).transpose(0, 1))
    key = turned((y @ block.key.weight.T).view(seq, kv_heads, size).transpose(0, 1))
    value = (y @ block.value.weight.T).view(seq, kv_heads, size).transpose(0, 1)
    later = torch.ones(seq, seq, dtype=torch.bool).triu(1)
    mixed = []
    for head in range(heads):
        group = head // (heads // kv_heads)
        scores = (query[head] @ key[group].T / math.sqrt(size)).masked_fill(later, -math.inf)
        mixed.append(scores.softmax(-1) @ value[group])
    x = x + torch.cat(mixed, dim=-1) @ block.project.weight.T
    y = norm(x, block.mlp_norm.weight)
    gate = y @ block.gate.weight.T
    return x + (gate * gate.sigmoid() * (y @ block.widen.weight.T)) @ block.narrow.weight.T


def test_llama_block_is_its_formulas() -> None:
    shape = parse(TrainModel, LLAMA)
    block = build_layer(shape, 1, seed=3).double()
    assert isinstance(block, LlamaBlock)
    with torch.no_grad():
        for parameter in block.parameters():  # as large as in training, and norms that are not 1
            parameter.add_(torch.randn_like(parameter) * 0.3)
    x = torch.randn(2, 11, 24, dtype=torch.float64)
    expected = torch.stack([llama_block(block, sample, heads=6, kv_heads=2) for sample in x])
    assert torch.allclose(block(x), expected, rtol=1e-10, atol=1e-10)


def test_layers_are_dealt_to_stages_and_chunks_in_forward_order() -> None:
    assert layers_of_stages(5, straight(4)) == [[[0, 1, 2]], [[3]], [[4]], [[5, 6]]]
    assert layers_of_stages(2, straight(1)) == [[[0, 1, 2, 3]]]
    assert layers_of_stages(5, straight(3), [1, 1, 3]) == [[[0, 1]], [[2]], [[3, 4, 5, 6]]]
    wave = Traversal(name="wave", stages=2, chunks=2)
    of = job(model={**GPT, "layers": 4}, stages=2, dc_of_stage=[0, 1], pipelines=1)
    assert Stage(of, 0, wave).numbers == [0, 1, 4, 5]
    assert Stage(of, 1, wave).numbers == [2, 3]
    assert layers_of_stages(5, wave, [3, 2]) == [[[0, 1, 2], [5, 6]], [[3], [4]]]
    loop = Traversal(name="loop", stages=2, chunks=2)
    assert layers_of_stages(6, loop, [2, 4]) == [[[0, 1], [4]], [[2, 3], [5, 6, 7]]]


def test_a_warm_up_longer_than_the_run_is_refused_at_its_field() -> None:
    assert job(steps=5, lr_schedule={"warmup_steps": 5}).optimizer.lr_schedule.warmup_steps == 5
    with pytest.raises(InputError, match=r"lr_schedule.warmup_steps: 6: at most steps = 5") as caught:
        job(steps=5, lr_schedule={"warmup_steps": 6})
    assert caught.value.field == "lr_schedule.warmup_steps"


def test_learning_rates() -> None:
    cosine = LearningRateSchedule(warmup_steps=4, decay="cosine", final=0.1)
    rates = [cosine.rate(2.0, step, 15) for step in range(15)]
    assert rates[:5] == pytest.approx([0.5, 1.0, 1.5, 2.0, 2.0])
    assert rates[9] == pytest.approx(2.0 * 0.55)  # half way down, between 1 and 0.1
    assert rates[-1] == pytest.approx(0.2)
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert [LearningRateSchedule().rate(3.0, step, 5) for step in range(5)] == [3.0] * 5
