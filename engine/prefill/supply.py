"""The tokens that the bubbles of a fleet could sell, and the time to first token at a given load.

The controller itself answers both, with synthetic requests: they meet the same bubbles, guards, chunks and
queue as real requests would.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.prefill.controller import Controller
from engine.prefill.index import Fleet
from engine.prefill.latency import Hop, LatencyModel
from engine.prefill.placement import Cache, Placement, PlacementQuery, Settings

Floats = NDArray[np.float64]
MS_PER_MIN = 60_000.0
NO_HOP = Hop()
# Iterations before counting: the first ones meet an empty queue.
WARM_ITERATIONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Stream:
    """Prompts of one length with random arrivals: `tokens` each, `tokens_per_min` together.

    ttft_ms : the objective within which each must be done, or it is refused.
    """

    tokens: int
    tokens_per_min: float
    ttft_ms: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Met:
    """Results of one stream: TTFT (ms) of accepted prompts, and the number refused."""

    ttft_ms: Floats
    refused: int

    @property
    def asked(self) -> int:
        return len(self.ttft_ms) + self.refused


def sellable(
    fleet: Fleet,
    latency: LatencyModel,
    *,
    settings: Settings,
    cache: Cache,
    tokens: int,
    hop: Hop = NO_HOP,
    requests: int = 1500,
) -> float:
    """Tokens per minute that the fleet prefills under an endless demand of prompts of `tokens` tokens; 0:
    none fits.

    Parameters
    ----------
    settings : its objective is ignored: less time means more refusals.
    hop : between the stages of a pipeline.
    requests : number of placed requests; more give a more exact rate.
    """
    if tokens > longest_prompt(fleet, latency, settings=settings, cache=cache, hop=hop):
        return 0.0
    controller = Controller(fleet, latency, settings=_endless(settings), cache=cache, hop=hop)
    at_ms, ends = 0.0, []
    for i in range(20 * requests):
        answer = controller.offer(PlacementQuery(id=i, tokens=tokens, arrival_ms=at_ms))
        if isinstance(answer, Placement):
            ends.append(answer.end_ms)
            if len(ends) == requests:
                break
        else:
            at_ms += max(answer.retry_after_ms or 0.0, controller.period_ms / 64)
    return _rate(np.sort(np.array(ends)), controller.period_ms) * tokens


def longest_prompt(
    fleet: Fleet, latency: LatencyModel, *, settings: Settings, cache: Cache, hop: Hop = NO_HOP
) -> int:
    """The longest prompt, in tokens, that a bubble takes and whose KV cache fits the budget; 0: none."""
    controller = Controller(fleet, latency, settings=_endless(settings), cache=cache, hop=hop)
    in_bubbles = controller.longest_tokens
    gpu_bytes = cache.token_bytes / fleet.pp_degree
    if gpu_bytes * in_bubbles <= cache.budget_bytes:
        return in_bubbles
    return int(cache.budget_bytes // gpu_bytes)


def _endless(settings: Settings) -> Settings:
    """Without an objective and without places ahead."""
    return Settings(guard_ms=settings.guard_ms, queue=settings.queue, chunk_tokens=settings.chunk_tokens)


def _rate(ends_ms: Floats, period_ms: float) -> float:
    """Requests per minute over whole iterations: after the warm-up, as long as the queue was full."""
    if not len(ends_ms):
        return 0.0
    last = int(ends_ms[-1] // period_ms)
    first = min(WARM_ITERATIONS, max(0, last - 1))
    begin, end = first * period_ms, max(last, first + 1) * period_ms
    return float(np.count_nonzero((ends_ms >= begin) & (ends_ms < end)) / (end - begin) * MS_PER_MIN)


def met(
    fleet: Fleet,
    latency: LatencyModel,
    *,
    settings: Settings,
    cache: Cache,
    streams: Sequence[Stream],
    hop: Hop = NO_HOP,
    requests: int = 1500,
    seed: int = 0,
) -> list[Met]:
    """Results of each of `streams` while all of them arrive (`arrivals`).

    A stream without tokens per minute has no results.
    """
    ttft: list[list[float]] = [[] for _ in streams]
    refused = [0] * len(streams)
    controller = Controller(fleet, latency, settings=settings, cache=cache, hop=hop)
    for i, (at_ms, kind) in enumerate(arrivals(streams, requests, seed)):
        stream = streams[kind]
        deadline_ms = at_ms + stream.ttft_ms
        answer = controller.offer(
            PlacementQuery(id=i, tokens=stream.tokens, arrival_ms=at_ms, deadline_ms=deadline_ms)
        )
        if isinstance(answer, Placement):
            ttft[kind].append(answer.ttft_ms)
        else:
            refused[kind] += 1
    return [Met(ttft_ms=np.array(t), refused=r) for t, r in zip(ttft, refused, strict=True)]


def arrivals(streams: Sequence[Stream], requests: int, seed: int) -> list[tuple[float, int]]:
    """(ms, number of the stream) of each request: Poisson arrivals of all streams, mixed.

    The same seed gives the same arrivals; none if no stream has tokens per minute.
    """
    rates = np.array([stream.tokens_per_min / stream.tokens / MS_PER_MIN for stream in streams])
    if rates.sum() <= 0:
        return []
    random = np.random.default_rng(seed)
    at_ms = np.cumsum(random.exponential(1 / rates.sum(), requests))
    kinds = random.choice(len(streams), size=requests, p=rates / rates.sum())
    return list(zip(at_ms.tolist(), kinds.tolist(), strict=True))
