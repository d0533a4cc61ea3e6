"""Prefill on the card: how long prompts take, and what they cost a training run that sells its bubbles."""

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.report import Cell, Check, Report, Table
from benchmarks.gpu.runs import on_card
from benchmarks.prefill_live import Told, measure
from engine.errors import Infeasible
from engine.inputs import parse
from engine.job.job import TrainJob
from engine.job.launch import single_machine
from engine.job.model_document import TrainModel
from engine.run.launcher import RankGroup
from engine.run.tiny import write_tiny
from engine.serve.measuring import PrefillProfile, PrefillProfileRequest, profile_prefill

LLAMA2_7B = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "head_dim": 128,
    "vocab_size": 32_000,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "initializer_range": 0.02,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e4},
}
# Vidur (commit 7d47513), H100: median ms of the linear operators of one layer of Llama-2 7B, without
# attention and head (their own profile of kernels, github.com/microsoft/vidur).
VIDUR_LAYER_MS = {128: 0.201, 256: 0.289, 512: 0.3785, 1024: 0.664, 2048: 1.278, 4096: 2.6313}
SERVED = {"family": "llama", "layers": 8, "hidden": 2048, "heads": 16, "kv_heads": 8, "seq": 512}
TRAINED = {"family": "llama", "layers": 8, "hidden": 2048, "heads": 16, "kv_heads": 8, "seq": 2048}
BLOCKS, ITERATIONS = 30, 2
SLOWDOWN_BAR = 0.01


def latency(*, dry: bool) -> Report:
    """Whole prompts of Llama-2 7B's shape with random weights, and how well the latency model fits."""
    if dry:
        with tempfile.TemporaryDirectory() as folder:
            write_tiny(Path(folder) / "tiny", steps=0)
            profile = _profile(Path(folder) / "tiny", (16, 32, 48, 64, 96, 128), "cpu")
    else:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(LLAMA2_7B))
            profile = _profile(Path(folder), (128, 256, 512, 1024, 2048, 4096), "cuda")
    rows: list[tuple[Cell, ...]] = []
    for row in profile.rows:
        linear = VIDUR_LAYER_MS.get(row.tokens)
        rows.append((row.tokens, row.ms, row.p95_ms, None if linear is None else 32 * linear))
    table = Table(
        title="Prefill of Llama-2 7B by prompt length, bf16, one prompt at a time",
        columns=("tokens", "ms", "p95 ms", "32 × Vidur's linear operators, ms"),
        rows=rows,
        note="Vidur's figure has neither attention nor head.",
    )
    return Report(part="prefill", tables=[table], checks=[_fit(profile)])


def _fit(profile: PrefillProfile) -> Check:
    fit = profile.fitted
    if isinstance(fit, Infeasible):
        return Check(name="latency model", value=fit.reason)
    model, left_out = fit
    return Check(
        name="latency model on lengths left out",
        value=f"mean {left_out.mean:.1%}, worst {left_out.worst:.1%}"
        f" (t = {model.a_ms:.3g} + {model.b_ms:.3g}·s + {model.c_ms:.3g}·s² ms)",
    )


def _profile(folder: Path, tokens: tuple[int, ...], device: str, weights: str = "random") -> PrefillProfile:
    request = {"checkpoint": str(folder), "weights": weights, "tokens": list(tokens), "device": device}
    return profile_prefill(parse(PrefillProfileRequest, request))


def sold(*, dry: bool) -> Report:
    """Two stages in two data centres share the card, and prompts run in their bubbles by turns."""
    with tempfile.TemporaryDirectory() as folder:
        served = Path(folder) / "served"
        small = TrainModel(family="llama", layers=2, hidden=64, heads=4, kv_heads=2, seq=128)
        write_tiny(served, steps=0, shape=small if dry else TrainModel.model_validate(SERVED))
        profile = _profile(served, (64, 128, 512, 1024, 1536), "cpu" if dry else "cuda", weights="disk")
        results = _blocks(_document(served, profile, dry), Path(folder) / "log", dry)
    high = results["high"]
    ended = ", ".join(f"{count} {kind}" for kind, count in sorted(results["ended"].items()))
    return Report(
        part="sold",
        checks=[
            Check(
                name="training slower with prefill, 95 % interval",
                value=f"{results['slowdown']:+.2%} ({results['low']:+.2%} to {high:+.2%})",
                bar=f"upper end under {SLOWDOWN_BAR:.0%}",
                ok=None if dry else high < SLOWDOWN_BAR,
            ),
            Check(
                name="iteration without, with",
                value=f"{results['iteration_ms_without']:.1f}, "
                f"{results['iteration_ms_with']:.1f} ms, {results['blocks']} blocks each",
            ),
            Check(name="requests", value=ended),
            Check(
                name="GPU seconds of prefill",
                value=f"{results['prefill_gpu_s']:.1f} in {results['seconds']:.0f} s",
            ),
            Check(
                name="time to first token, p50, p95",
                value=f"{results['ttft_ms'].get('p50', 0):.0f}, {results['ttft_ms'].get('p95', 0):.0f} ms",
            ),
        ],
    )


def _document(served: Path, profile: PrefillProfile, dry: bool) -> dict[str, Any]:
    """A cell of two stages over a slow WAN, so that both wait for messages at the same time."""
    small = {"layers": 2, "hidden": 64, "heads": 4, "seq": 64}
    return {
        "datacenters": [{"name": "a", "gpus": 1}, {"name": "b", "gpus": 1}],
        "links": [{"between": ["a", "b"], "latency_ms": 10, "bandwidth_gbps": 10}],
        "stages": 2,
        "dc_of_stage": [0, 1],
        "microbatches": 4,
        "micro_batch": 1,
        "policy": "1f1b",
        "model": small if dry else TRAINED,
        "dtype": "bf16",
        "steps": 1_000_000,
        **on_card(2, dry),
        "prefill": {
            "checkpoint": str(served),
            "dtype": "bf16",
            "weight_budget_gb": 2.0,
            "kv_budget_gb": 0.5,
            "latency": {"points": _growing(profile.points)},
            "chunk_tokens": 32,
            "pause_slowdown": 1.0,
        },
    }


def _growing(points: Sequence[tuple[int, float]]) -> list[list[float]]:
    """The points, each at least a thousandth above the one before: short prompts take the launches' time."""
    rows: list[list[float]] = []
    for tokens, ms in points:
        rows.append([tokens, max(ms, rows[-1][1] * 1.001) if rows else ms])
    return rows


def _blocks(document: dict[str, Any], logs: Path, dry: bool) -> dict[str, Any]:
    """Blocks of iterations with prefill and without by turns, as `benchmarks.prefill_live` has them."""
    options = argparse.Namespace(
        blocks=2 if dry else BLOCKS,
        iterations=ITERATIONS,
        many=1,
        longest=256,
        tokens=1,
        objective=5000.0,
        coordinators=2,
    )
    recorder, spec = Told(), single_machine(parse(TrainJob, document), run="bench", log_dir=str(logs))
    group = RankGroup(spec, recorder.on_event)
    group.start()
    try:
        return asyncio.run(measure(group, recorder, options, spec.secret))
    finally:
        group.stop(1.0)
