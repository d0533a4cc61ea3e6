"""How long prefill takes on this machine, by the prompt's length, and the latency model fitted to that."""

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch
from pydantic import Field, model_validator

from engine.errors import Infeasible, InputError
from engine.inputs import Count, Document, Index
from engine.job.prefill.config import LlamaConfig, read_config
from engine.prefill.latency import HeldOut, LatencyModel, errors, fit, held_out
from engine.serve.kv_pool import BLOCK_TOKENS, KvShape
from engine.serve.pipeline import PrefillPipeline
from engine.serve.stage import ChunkTimes, PrefillStage, StageSettings

WARM_UP = 2  # prompts of each length that are not counted: kernels are chosen, memory is taken
LENGTHS = (128, 256, 384, 512, 768, 1024, 1536, 2048)
FEWEST_LENGTHS = 5  # three figures are fitted, and some lengths must be left to check them with
REQUEST = "measured"
LEASE_S = 3600.0


class PrefillProfileRequest(Document):
    """What to measure.

    checkpoint : folder of a Hugging Face Llama.
    weights : disk, or random: then config.json alone is read, as the values have no say in how long it takes.
    tokens : lengths of the prompts.  repeats : prompts of each that are counted, after a warm-up.
    threads : of the CPU.
    """

    checkpoint: Annotated[str, Field(min_length=1)]
    weights: Literal["disk", "random"] = "disk"
    tokens: Annotated[tuple[Count, ...], Field(min_length=FEWEST_LENGTHS, max_length=1000)] = LENGTHS
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["fp32", "bf16"] = "bf16"
    repeats: Annotated[Count, Field(le=10_000)] = 5
    threads: Annotated[Count, Field(le=1024)] = 1
    seed: Annotated[Index, Field(le=2**31 - 1)] = 0

    @model_validator(mode="after")
    def _consistent(self) -> "PrefillProfileRequest":
        if len(set(self.tokens)) < len(self.tokens):
            raise InputError("tokens", self.tokens, "each length once")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise InputError("device", self.device, "torch sees no CUDA device here; allowed: cpu")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthTimes:
    """Prefill of one length: median and 95th percentile in ms."""

    tokens: int
    ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillProfile:
    """Measured times, the model fitted to the medians, and its errors where it saw a length and where not."""

    rows: tuple[LengthTimes, ...]
    weight_bytes: int
    token_bytes: int

    @property
    def points(self) -> list[tuple[float, float]]:
        """(tokens, ms), as `profile.points` of `meridian prefill replay` takes them."""
        return [(row.tokens, row.ms) for row in self.rows]

    @property
    def fitted(self) -> tuple[LatencyModel, HeldOut] | Infeasible:
        """The model and its errors on lengths left out, or why the times do not make one."""
        try:
            return fit(self.points), held_out(self.points)
        except InputError as error:
            return Infeasible(reason=f"{error.allowed}: measure again on a machine that does nothing else")

    def as_dict(self) -> dict[str, Any]:
        """The profile as JSON values; latency, held_out and error are null where there is a reason."""
        measured: dict[str, Any] = {
            "rows": [
                {"tokens": row.tokens, "prefill_ms": row.ms, "prefill_p95_ms": row.p95_ms, "error": None}
                for row in self.rows
            ],
            "points": [list(point) for point in self.points],
            "weight_bytes": self.weight_bytes,
            "kv_bytes_per_token": self.token_bytes,
        }
        fitted = self.fitted
        if isinstance(fitted, Infeasible):
            return measured | {"latency": None, "held_out": None, "reason": fitted.reason}
        latency, left_out = fitted
        for row, error in zip(measured["rows"], errors(latency, self.points), strict=True):
            row["error"] = error
        return measured | {"latency": asdict(latency), "held_out": asdict(left_out), "reason": None}


def profile_prefill(
    request: PrefillProfileRequest, *, report: Callable[[int], None] | None = None
) -> PrefillProfile:
    """Measure whole prompts on one stage that holds the whole model.

    Parameters
    ----------
    report : told of every round through the lengths that is done.

    Raises
    ------
    InputError
        The checkpoint does not do, or a length is beyond the model's context.
    """
    config = read_config(Path(request.checkpoint).expanduser())
    longest = config.max_position_embeddings
    for i, tokens in enumerate(request.tokens):
        if tokens > longest:
            raise InputError(f"tokens[{i}]", tokens, f"at most {longest:,}, the model's context")
    torch.set_num_threads(request.threads)
    ran: list[ChunkTimes] = []
    stage = _stage(request, config, ran)
    drawn = np.random.default_rng(request.seed)
    prompts = [drawn.integers(0, config.vocab_size, tokens).tolist() for tokens in sorted(request.tokens)]
    run = PrefillPipeline([stage])
    for done in range(rounds(request)):
        for prompt in prompts:
            _once(run, prompt)
        if report is not None:
            report(done)
    rows = tuple(_times(len(prompt), ran) for prompt in prompts)
    token_bytes = stage.pool.shape.token_bytes
    return PrefillProfile(rows=rows, weight_bytes=stage.weight_bytes, token_bytes=token_bytes)


def rounds(request: PrefillProfileRequest) -> int:
    """How often every length is run: all of them in turn, so that a slow minute falls on all alike."""
    return WARM_UP + request.repeats


def _stage(request: PrefillProfileRequest, config: LlamaConfig, ran: list[ChunkTimes]) -> PrefillStage:
    """The whole model, with room for the longest prompt."""
    layers = range(config.num_hidden_layers)
    shape = KvShape.of(config, layers, dtype=request.dtype, block_tokens=BLOCK_TOKENS)
    budget_bytes = shape.block_bytes * shape.blocks_of(max(request.tokens))
    settings = StageSettings(
        stage=0, stages=1, dtype=request.dtype, device=request.device, kv_budget_bytes=budget_bytes
    )
    seed = request.seed if request.weights == "random" else None
    return PrefillStage.load(request.checkpoint, settings, report=ran.append, seed=seed)


def _once(run: PrefillPipeline, prompt: list[int]) -> None:
    refused = run.prefill(REQUEST, prompt, lease_s=LEASE_S)
    if isinstance(refused, Infeasible):
        raise InputError("tokens", len(prompt), refused.reason)
    run.abort(REQUEST)


def _times(tokens: int, ran: list[ChunkTimes]) -> LengthTimes:
    """Of the prompts of one length, those after the warm-up."""
    all_ms = [(done.end - done.start) * 1e3 for done in ran if done.chunk.tokens == tokens]
    counted = all_ms[WARM_UP:]
    return LengthTimes(tokens=tokens, ms=statistics.median(counted), p95_ms=float(np.percentile(counted, 95)))
