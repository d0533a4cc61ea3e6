"""One stage of a prefill pipeline: what a rank owns of the served model, and how it runs a chunk."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from engine.errors import InputError
from engine.job.prefill.config import read_config
from engine.nn.device import LOW_PRIORITY
from engine.prefill.latency import LatencyModel
from engine.serve.chunks import PrefillChunk
from engine.serve.decoder import BlockWeights, block, rms_norm
from engine.serve.kv_pool import BLOCK_TOKENS, KvCache, KvPool, KvShape
from engine.serve.rotary import angles, frequencies
from engine.serve.weights import DTYPES, EMBEDDING, NORM, Part, random_weights, read_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSettings:
    """What of a model a stage holds, and within which limits.

    dtype : fp32 or bf16, of weights, activations and KV cache.  device : as torch names it.
    weight_budget_bytes : most that the weights may take; None: whatever they do.
    kv_budget_bytes : most that all KV caches may take at the same time, in blocks of `block_tokens`.
    latency : the emulated device: a chunk takes as long as this model of the whole decoder says of a stage,
        never less; None: as long as it takes.
    """

    stage: int
    stages: int
    kv_budget_bytes: int
    dtype: str = "fp32"
    device: str = "cpu"
    weight_budget_bytes: int | None = None
    block_tokens: int = BLOCK_TOKENS
    latency: LatencyModel | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise InputError("dtype", self.dtype, f"allowed: {', '.join(DTYPES)}")
        if self.block_tokens < 1:
            raise InputError("block_tokens", self.block_tokens, "must be at least 1")

    def lasts_s(self, chunk: PrefillChunk) -> float:
        """How long a chunk occupies this stage on the emulated device; 0 elsewhere."""
        if self.latency is None:
            return 0.0
        return self.latency.stage_ms(chunk.tokens, self.stages, done=chunk.done) / 1e3


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkTimes:
    """A chunk that ran, in monotonic seconds; `overrun_s`: by how much it took longer than emulated."""

    chunk: PrefillChunk
    start: float
    end: float
    overrun_s: float


class PrefillStage:
    """Contiguous blocks of a Llama; the embedding on the first stage, norm and head on the last.

    Not for two threads at once: a stage is one GPU. `pool` is.
    report : told of every chunk that ran.
    """

    def __init__(
        self,
        part: Part,
        tensors: dict[str, Tensor],
        settings: StageSettings,
        report: Callable[[ChunkTimes], None] | None = None,
    ) -> None:
        self.part, self.settings, self.config = part, settings, part.config
        self.device, self.dtype = torch.device(settings.device), DTYPES[settings.dtype]
        self.weight_bytes = part.weight_bytes(settings.dtype)
        shape = KvShape.of(part.config, part.blocks, dtype=settings.dtype, block_tokens=settings.block_tokens)
        self.pool = KvPool(shape, budget_bytes=settings.kv_budget_bytes, device=self.device)
        self._blocks = [BlockWeights.of(tensors, number) for number in part.blocks]
        self._ends = {
            name: tensors[name] for name in (EMBEDDING, NORM, part.head_name) if name in part.shapes
        }
        self._frequencies = frequencies(part.config).to(self.device)
        self._stream = (
            torch.cuda.Stream(self.device, priority=LOW_PRIORITY) if self.device.type == "cuda" else None
        )
        if self._stream is not None:  # the weights may still be on their way, on the stream of who made them
            self._stream.wait_stream(torch.cuda.current_stream(self.device))
        self._report = report

    @property
    def gives_way(self) -> bool:
        """Whether training may begin an op while a chunk runs: on a GPU, where its kernels come first."""
        return self._stream is not None

    @property
    def most_hidden_bytes(self) -> int:
        """Of hidden states of as many tokens as the KV caches may hold: requests here have no more."""
        tokens = self.pool.shape.tokens_within(self.settings.kv_budget_bytes)
        return tokens * self.part.hidden_bytes(self.settings.dtype)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        settings: StageSettings,
        *,
        report: Callable[[ChunkTimes], None] | None = None,
        seed: int | None = None,
    ) -> "PrefillStage":
        """The stage of the Hugging Face checkpoint in `folder`: config.json and safetensors.

        Parameters
        ----------
        seed : draw the weights instead of reading them; the folder need not hold any.

        Raises
        ------
        InputError
            Another architecture, more stages than layers, weights over the budget (with the figures; nothing
            has been read then), no room for a block of KV cache, or a file that is missing or damaged.
        """
        folder = Path(folder).expanduser()
        part = Part(config=read_config(folder), stage=settings.stage, stages=settings.stages)
        part.check_budget(settings.dtype, settings.weight_budget_bytes)
        device = torch.device(settings.device)
        if seed is None:
            tensors = read_weights(folder, part, dtype=settings.dtype, device=device)
        else:
            tensors = random_weights(part, dtype=settings.dtype, device=device, seed=seed)
        return cls(part, tensors, settings, report)

    @torch.inference_mode()
    def run(self, chunk: PrefillChunk, x: Tensor) -> Tensor:
        """Run a chunk; its keys and values stay in the pool, where `chunk.request` has reserved room.

        Parameters
        ----------
        x : the first stage's token ids (tokens,), the others' hidden states (tokens, hidden).

        Returns
        -------
        Hidden states for the next stage. Of the last stage: logits (vocabulary,) of a prompt's last token in
        its final chunk, and no values (0,) in the chunks before it.

        Raises
        ------
        LeaseEnded
            The request holds no cache here any more.
        ValueError
            The chunk does not follow what the cache holds, or `x` is not of its shape.
        """
        self._check(chunk, x)
        with self.pool.pinned(chunk.request) as cache:
            if chunk.done != cache.filled or chunk.done + chunk.tokens > cache.tokens:
                raise ValueError(
                    f"chunk of {chunk.tokens} tokens after {chunk.done}: the cache of {chunk.request} holds "
                    f"{cache.filled} of {cache.tokens}"
                )
            start = time.monotonic()
            output = self._done(chunk, x, cache)
            cache.filled += chunk.tokens
            self._stretch(chunk, start)
        return output

    def _done(self, chunk: PrefillChunk, x: Tensor, cache: KvCache) -> Tensor:
        """What `_compute` makes, once it is there: on a GPU that is later than its kernels are queued."""
        if self._stream is None:
            return self._compute(chunk, x, cache)
        with torch.cuda.stream(self._stream):
            output = self._compute(chunk, x.to(self.device), cache)
            over = torch.cuda.Event(blocking=True)
            over.record()
        over.synchronize()
        return output

    def _compute(self, chunk: PrefillChunk, x: Tensor, cache: KvCache) -> Tensor:
        turns = angles(self._frequencies, first=chunk.done, count=chunk.tokens, dtype=self.dtype)
        if self.part.is_first:
            x = functional.embedding(x, self._ends[EMBEDDING])
        for layer, weights in enumerate(self._blocks):
            x = block(x, weights, self.config, turns, cache.past(layer))
        if not self.part.is_last:
            return x
        last = x[-1:] if chunk.final else x[:0]
        normed = rms_norm(last, self._ends[NORM], self.config.rms_norm_eps)
        return functional.linear(normed, self._ends[self.part.head_name]).flatten()

    def _stretch(self, chunk: PrefillChunk, start: float) -> None:
        """On the emulated device, wait until the chunk has lasted as long as it would."""
        left = start + self.settings.lasts_s(chunk) - time.monotonic()
        if left > 0:
            time.sleep(left)
        if self._report is not None:
            overrun_s = max(0.0, -left) if self.settings.latency is not None else 0.0
            self._report(ChunkTimes(chunk=chunk, start=start, end=time.monotonic(), overrun_s=overrun_s))

    def _check(self, chunk: PrefillChunk, x: Tensor) -> None:
        inner = () if self.part.is_first else (self.config.hidden_size,)
        if tuple(x.shape) != (chunk.tokens, *inner):
            raise ValueError(f"input of shape {tuple(x.shape)}: must be {(chunk.tokens, *inner)}")
