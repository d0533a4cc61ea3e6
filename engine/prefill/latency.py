"""The duration of a prefill: t = a + b·s + c·s² for s prompt tokens, by model, GPU and pipeline degree.

The prompt is known when a request arrives and prefill does nothing else, so its time can be predicted
(BubbleTea §5.1): a is the cost of every launch (reading the weights), b the products with the weights, c
attention. On `pp_degree` stages each computes its share of the layers.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError

Point = tuple[float, float]
MOST_RESERVE_MS = 600_000.0  # bubbles are not predicted further


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyModel:
    """Milliseconds of one prefill on one GPU that holds the whole model: a_ms + b_ms·s + c_ms·s².

    None of the three is below 0, and b or c is above. Raises ValueError otherwise.
    """

    a_ms: float
    b_ms: float
    c_ms: float

    def __post_init__(self) -> None:
        values = (self.a_ms, self.b_ms, self.c_ms)
        if not all(math.isfinite(value) and value >= 0 for value in values):
            raise ValueError(f"a_ms, b_ms, c_ms {values}: each must be a finite number of at least 0")
        if not self.b_ms + self.c_ms > 0:
            raise ValueError("b_ms, c_ms: at least one must be greater than 0, as every token takes time")

    def ms(self, tokens: float, *, done: float = 0) -> float:
        """Time of `tokens` tokens after `done` tokens whose cache is present: a chunk pays `a` again.

        It attends to all tokens before it: c·((done + tokens)² − done²).
        """
        return self.a_ms + self.b_ms * tokens + self.c_ms * tokens * (2.0 * done + tokens)

    def stage_ms(self, tokens: float, pp_degree: int, *, done: float = 0) -> float:
        """Time for which a chunk occupies each GPU of a pipeline of `pp_degree` stages."""
        return self.ms(tokens, done=done) / pp_degree

    def ttft_ms(self, tokens: int, pp_degree: int, hop: "Hop", chunk: int | None = None) -> float:
        """Time from the start on an idle pipeline to the end on its last stage, without the KV transfer
        (BubbleTea §6.6, Fig. 14).

        chunk : tokens of each chunk but the last, which stages then compute at the same time; None: whole.
        """
        done, free = 0, [0.0] * pp_degree
        while done < tokens:
            size = min(chunk or tokens, tokens - done)
            arrives = free[0]
            for stage in range(pp_degree):
                free[stage] = max(free[stage], arrives) + self.stage_ms(size, pp_degree, done=done)
                arrives = free[stage] + hop.ms(size)
            done += size
        return free[-1]

    def longest(self, span_ms: float, pp_degree: int) -> int:
        """Most tokens of a whole prompt that occupy each stage for at most `span_ms`; 0 if none do."""
        left = span_ms * pp_degree - self.a_ms
        if left < self.b_ms + self.c_ms:
            return 0
        if self.c_ms == 0:
            tokens = int(left / self.b_ms)
        else:
            root = math.sqrt(self.b_ms**2 + 4 * self.c_ms * left)
            tokens = int(2 * left / (root + self.b_ms))
        while self.stage_ms(tokens + 1, pp_degree) <= span_ms:
            tokens += 1
        while tokens and self.stage_ms(tokens, pp_degree) > span_ms:
            tokens -= 1
        return tokens

    def scaled(self, factor: float) -> "LatencyModel":
        """The model of a GPU on which everything takes `factor` times as long."""
        return LatencyModel(a_ms=self.a_ms * factor, b_ms=self.b_ms * factor, c_ms=self.c_ms * factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hop:
    """Time of passing a chunk to the next stage of a prefill pipeline: fixed, and by token."""

    fixed_ms: float = 0.0
    token_ms: float = 0.0

    def ms(self, tokens: float) -> float:
        return self.fixed_ms + self.token_ms * tokens


def errors(model: LatencyModel, points: Sequence[Point]) -> tuple[float, ...]:
    """For each point (tokens, ms): model / measured − 1. Below 0 the model promises too much."""
    return tuple(model.ms(tokens) / ms - 1 for tokens, ms in points)


def fit(points: Sequence[Point]) -> LatencyModel:
    """The model with the least squares of relative errors on `points`, (tokens, ms), none of a, b, c below 0.

    Raises
    ------
    InputError
        Fewer than three different lengths, or a length or time that is not above 0.
    """
    for i, (tokens, ms) in enumerate(points):
        if not (math.isfinite(tokens) and math.isfinite(ms) and tokens > 0 and ms > 0):
            raise InputError(f"points[{i}]", [tokens, ms], "tokens and ms must be greater than 0")
    if len({tokens for tokens, _ in points}) < 3:
        raise InputError(
            "points", len(points), "at least three different lengths, because three figures are fitted"
        )
    tokens, ms = np.array(points, dtype=np.float64).T
    scale = float(tokens.max())
    terms = np.stack([np.ones_like(tokens), tokens / scale, (tokens / scale) ** 2], axis=1) / ms[:, None]
    a_ms, b_ms, c_ms = _least_squares(terms)
    if not b_ms + c_ms > 0:
        longest = f"{tokens.max():,.0f}"
        allowed = f"times must grow with tokens: up to {longest} they do not, so measure longer prompts too"
        raise InputError("points", len(points), allowed)
    return LatencyModel(a_ms=float(a_ms), b_ms=float(b_ms / scale), c_ms=float(c_ms / scale**2))


def _least_squares(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """x ≥ 0 with the least |terms·x − 1|: the best of the solutions in which some of x are 0."""
    best, least = np.zeros(terms.shape[1]), np.inf
    for size in range(1, terms.shape[1] + 1):
        for columns in combinations(range(terms.shape[1]), size):
            x = np.zeros(terms.shape[1])
            x[list(columns)] = np.linalg.lstsq(terms[:, columns], np.ones(len(terms)), rcond=None)[0]
            off = float(np.square(terms @ x - 1).sum())
            if off < least and x.min() >= 0:
                best, least = x, off
    return best


def covering(model: LatencyModel, points: Sequence[Point]) -> LatencyModel:
    """`model`, slowed down until it promises too much at none of `points`.

    A controller should plan with it: a prefill that takes longer than planned delays training.
    """
    return model.scaled(max(1.0, max((1 / (1 + error) for error in errors(model, points)), default=1.0)))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Relative errors on points that the fit did not see: each point once."""

    mean: float
    worst: float
    points: int


def held_out(points: Sequence[Point], folds: int = 4) -> HeldOut:
    """Cross-validation: every `folds`-th point by tokens is left out in turn, the shortest and longest never.

    Raises
    ------
    InputError
        As `fit`, if too few points remain.
    """
    ordered = sorted(points)
    misses: list[float] = []
    for fold in range(folds):
        inner = range(1, len(ordered) - 1)
        left_out = [i for i in inner if (i - 1) % folds == fold]
        rest = [point for i, point in enumerate(ordered) if i not in left_out]
        if left_out:
            misses += [abs(e) for e in errors(fit(rest), [ordered[i] for i in left_out])]
    if not misses:
        raise InputError("points", len(points), "at least three different lengths and one to leave out")
    return HeldOut(
        mean=sum(misses) / len(misses),
        worst=max(misses),
        points=len(misses),
    )
