"""Layers of each stage by the speed and the memory of its GPU (`layers_per_stage: balanced`).

A stage of n layers takes t = a + b·n for one microbatch, all passes together: b is its GPU's, a the part of
embedding, output matrix and hand-overs. M equal microbatches that pass the stages one after the other take
Σ t + (M − 1)·max t, as equal jobs in a flow shop do (Pinedo, Scheduling, §6.1). If no stage can hold more
than k of them, they also take M/k·Σ t (engine.plan.search.bound). Over all ways to spread the layers,
`spread` finds where the greater of both is least: it tries every time T of the slowest stage, which leaves
each stage room for so many layers, and every k. For one T and k, Σ t is least if layers go to the fastest
GPUs first.
"""

import heapq
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from engine.cluster.gpus import Gpu
from engine.model.memory import StageMemory
from engine.plan.gradients import Parameters, largest
from engine.plan.stages import Stages

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]

MOST_LAYERS = 1_000  # that are spread
# Sums that differ by rounding alone are equal.
EQUAL = 1e-12
CLOSE = 1e-9  # of a whole layer
PASSES = ("forward_s", "backward_s", "recompute_s")
ALL_PASSES = "all"
# Numbers that are compared at once.
AT_ONCE = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear:
    """A figure of each stage, `fixed + each · layers`, shape (stages,)."""

    fixed: Floats
    each: Floats

    def at(self, layers: Counts | float) -> Floats:
        return self.fixed + self.each * layers


def spread(layers: int, microbatches: int, times: Linear, most: Counts) -> tuple[int, ...] | None:
    """The layers of each stage, at least one each, that make an iteration shortest; None if none fit.

    Parameters
    ----------
    times : of one microbatch on each stage.
    most : the most layers with which each stage has memory for 1, 2, … microbatches, shape (held, stages).
        Holding more of them is of no use.
    """
    held, most = _distinct(np.minimum(most, layers - len(times.fixed) + 1), layers)
    if not held.size:
        return None
    stages = _Kinds.of(times, most)
    slowest = stages.slowest(layers, microbatches, held)
    at_once = max(1, AT_ONCE // max(1, slowest.size * len(stages.count)))
    best: tuple[float, float, Counts] | None = None
    for first in range(0, len(held), at_once):
        some = slice(first, first + at_once)
        seconds = stages.seconds(layers, microbatches, held[some], slowest, some)
        for row, least, counts in zip(seconds, seconds.min(axis=1).tolist(), most[some], strict=True):
            if best is None or least < best[0] * (1 - EQUAL):
                shortest = slowest[np.argmax(row <= least * (1 + EQUAL))]  # of equals the least T
                best = least, float(shortest), counts
    return None if best is None else tuple(_even(layers, times, best[1], best[2]).tolist())


def _distinct(most: Counts, layers: int) -> tuple[Counts, Counts]:
    """The numbers of microbatches, the largest first, with which other spreads fit than with more; and the
    most layers of each stage then.
    """
    held, most = np.arange(len(most), 0, -1), most[::-1]
    fits = (most.min(axis=1) >= 1) & (most.sum(axis=1) >= layers)
    fits[1:] &= np.any(most[1:] != most[:-1], axis=1)
    return held[fits], most[fits]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kinds:
    """Stages that are alike, counted together; a column of `most` each, with a row for each number held."""

    each: Floats
    fixed: Floats
    most: Floats
    count: Counts

    @classmethod
    def of(cls, times: Linear, most: Counts) -> "_Kinds":
        """The kinds of stages, the fastest first."""
        columns = np.ascontiguousarray(np.stack([times.each, times.fixed, *most], axis=1))
        alike = Counter(column.tobytes() for column in columns)
        kinds = np.array(sorted(np.frombuffer(column).tolist() for column in alike)).T
        count = np.array([alike[np.ascontiguousarray(kind).tobytes()] for kind in kinds.T])
        return cls(each=kinds[0], fixed=kinds[1], most=kinds[2:], count=count)

    def slowest(self, layers: int, microbatches: int, held: Counts) -> Floats:
        """Every time T of the slowest stage that the best spread can have.

        All T leave the stages room for the layers. The least of them gives a first iteration; with a T so
        great that the slowest stage alone takes longer, with all layers on the fastest GPUs, no other can be
        better.
        """
        tops = self.most.max(axis=0)
        lines = zip(self.fixed, self.each, tops, strict=True)
        times = np.unique(np.concatenate([a + b * np.arange(1, n + 1) for a, b, n in lines]))
        times = times[times >= np.max(self.fixed + self.each)]
        room = np.minimum(self._within(times), tops) @ self.count
        times = times[room >= layers]
        first = self.seconds(layers, microbatches, held, times[:1], slice(None)).min(initial=np.inf)
        least = self.count @ (self.fixed + self.each) + (layers - self.count.sum()) * self.each.min()
        return np.asarray(times[least + (microbatches - 1) * times <= first * (1 + CLOSE)])

    def _within(self, slowest: Floats) -> Floats:
        """The layers with which no stage of a kind takes longer than each T, shape (T, kinds)."""
        return np.floor((slowest[:, None] - self.fixed) / self.each + CLOSE)

    def seconds(self, layers: int, microbatches: int, held: Counts, slowest: Floats, rows: slice) -> Floats:
        """The least iteration with no stage above each T, shape (held, T); infinite where layers are left."""
        within = np.minimum(self._within(slowest), self.most[rows, None, :])
        filled = np.minimum(np.cumsum((within - 1) * self.count, axis=2), layers - self.count.sum())
        total = self.count @ (self.fixed + self.each) + np.diff(filled, axis=2, prepend=0.0) @ self.each
        seconds = np.maximum(total + (microbatches - 1) * slowest, microbatches / held[:, None] * total)
        return np.where(within @ self.count >= layers, seconds, np.inf)


def _even(layers: int, times: Linear, slowest: float, most: Counts) -> Counts:
    """The spread with no stage above `slowest`: the fastest GPUs first, equal ones as even as possible."""
    within = np.minimum(np.floor((slowest - times.fixed) / times.each + CLOSE), most)
    counts = np.ones(len(most), dtype=np.int64)
    left = layers - len(most)
    for speed in np.unique(times.each):
        ahead = [(times.at(2)[i], i) for i in np.flatnonzero(times.each == speed).tolist() if within[i] > 1]
        heapq.heapify(ahead)
        while left and ahead:
            _, i = heapq.heappop(ahead)
            counts[i] += 1
            left -= 1
            if counts[i] < within[i]:
                heapq.heappush(ahead, (times.fixed[i] + times.each[i] * (counts[i] + 1), i))
    return counts


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """Spreads the layers of a job in one layout over the GPUs of its stages, whatever these are.

    of_layers : the stages with so many layers each.
    most_held : microbatches beyond which holding more is of no use: straight 1F1B holds one for each stage.
    """

    layers: int
    stages: int
    microbatches: int
    most_held: int
    of_layers: Callable[[tuple[int, ...]], Stages]
    _stages: dict[tuple[int, ...], Stages] = field(default_factory=dict, compare=False)
    _spreads: dict[tuple[str, ...], tuple[int, ...] | None] = field(default_factory=dict, compare=False)
    _linear: dict[tuple[str, str], Linear] = field(default_factory=dict, compare=False)

    def stages_with(self, layers: tuple[int, ...]) -> Stages:
        """The stages with so many layers each, computed once."""
        if layers not in self._stages:
            self._stages[layers] = self.of_layers(layers)
        return self._stages[layers]

    def sharded_over(self, replicas: int, ep: int) -> "Balance":
        """The same with the optimizer's state spread over `replicas` of each stage (ZeRO-1), of which one in
        `ep` has the same experts.
        """
        return Balance(
            layers=self.layers,
            stages=self.stages,
            microbatches=self.microbatches,
            most_held=self.most_held,
            of_layers=lambda layers: self.stages_with(layers).sharded_over(replicas, ep),
        )

    @property
    def smallest(self) -> Stages:
        """The stages with one layer each: a GPU that holds none of them is of no use."""
        return self.stages_with((1,) * self.stages)

    def least_parameters(self, gpu: Gpu) -> tuple[Parameters, ...]:
        """Of stages such that some stage (on any type of GPU) takes as long as each of them to sum its
        gradients, however the layers are spread.

        The mean of all, as the time is linear in the parameters, and each stage with one layer.
        """
        every, experts = (
            self.figures((gpu,) * self.stages, name) for name in ("parameters", "expert_parameters")
        )
        mean = self.layers / self.stages
        return (
            Parameters(all=float(np.mean(every.at(mean))), experts=float(np.mean(experts.at(mean)))),
            *largest(map(Parameters, every.at(1).tolist(), experts.at(1).tolist())),
        )

    def layers_on(self, gpus: Sequence[Gpu]) -> tuple[int, ...] | None:
        """The layers of each stage, stage i on `gpus[i]`; None if none fit."""
        types = list({gpu.name: gpu for gpu in gpus}.values())
        index = {gpu.name: i for i, gpu in enumerate(types)}
        (counts,) = self.layers_at(np.array([[index[gpu.name] for gpu in gpus]]), types).tolist()
        return tuple(counts) if counts[0] else None

    def layers_at(self, type_of_stage: Counts, types: Sequence[Gpu]) -> Counts:
        """The layers of each stage of several pipelines, shape (pipelines, stages); 0 where none fit.

        How many stages of each type stand between the first and the last one decides, not their order.

        type_of_stage : indexes into `types`, shape (pipelines, stages).
        """
        inner, named = type_of_stage[:, 1:-1], sorted(range(len(types)), key=lambda i: types[i].name)
        ends = [type_of_stage[:, 0], type_of_stage[:, -1]]
        features = np.column_stack([*ends, *((inner == i).sum(axis=1) for i in named)])
        radix = (features.max(axis=0) + 1).cumprod()  # one number for each kind: sorting rows takes longer
        _, at, kind_of = np.unique(
            features[:, 0] + features[:, 1:] @ radix[:-1], return_index=True, return_inverse=True
        )
        counts = np.zeros_like(type_of_stage)
        for kind, (first, last, *numbers) in enumerate(features[at].tolist()):
            inside = np.repeat(named, numbers)
            layers = self._spread([types[i] for i in [first, *inside.tolist(), last][: self.stages]])
            if layers is None:
                continue
            rows = np.flatnonzero(kind_of.ravel() == kind)
            counts[rows, 0], counts[rows, -1] = layers[0], layers[-1]
            for i in set(inside.tolist()):
                row, stage = np.nonzero(inner[rows] == i)
                counts[rows[row], stage + 1] = np.tile(np.array(layers[1:-1])[inside == i], len(rows))
        return counts

    def _spread(self, gpus: Sequence[Gpu]) -> tuple[int, ...] | None:
        key = tuple(gpu.name for gpu in gpus)
        if key not in self._spreads:
            times = self.figures(gpus, ALL_PASSES)
            self._spreads[key] = spread(self.layers, self.microbatches, times, self._most(gpus))
        return self._spreads[key]

    def _most(self, gpus: Sequence[Gpu]) -> Counts:
        """The most layers with which each stage has memory for 1, 2, … microbatches, shape (held, stages)."""
        memory_bytes = np.array([gpu.usable_bytes for gpu in gpus])
        held, none, each = np.arange(1, self.most_held + 1)[:, None], self._no_microbatch, self._microbatch
        layers = (memory_bytes - none.fixed - held * each.fixed) // (none.each + held * each.each)
        return np.maximum(layers, 0).astype(np.int64)

    def figures(self, gpus: Sequence[Gpu], name: str) -> Linear:
        """A figure of the profile of each stage by its layers, stage i on `gpus[i]`."""
        types = {gpu.name: gpu for gpu in gpus}
        index = {gpu_type: i for i, gpu_type in enumerate(types)}
        at = np.array([index[gpu.name] for gpu in gpus]), np.arange(len(gpus))
        lines = [self._figures(gpu, name) for gpu in types.values()]
        return Linear(
            fixed=np.array([line.fixed for line in lines])[at],
            each=np.array([line.each for line in lines])[at],
        )

    def in_flight(self, memory_bytes: Floats, layers: Counts) -> Floats:
        """Microbatches that fit GPUs of `memory_bytes` with so many layers; below 1: these do not.

        Both have shape (..., stages).
        """
        left = memory_bytes - self._no_microbatch.at(layers)
        return np.floor(left / self._microbatch.at(layers))

    def _figures(self, gpu: Gpu, name: str) -> Linear:
        if (gpu.name, name) not in self._linear:
            names = PASSES if name == ALL_PASSES else (name,)
            profiles = (self.stages_with((n,) * self.stages).on(gpu) for n in (1, 2))
            one, two = ([sum(getattr(p, part) for part in names) for p in each] for each in profiles)
            self._linear[gpu.name, name] = _through(one, two)
        return self._linear[gpu.name, name]

    @property
    def _no_microbatch(self) -> Linear:
        """Bytes on each stage without any microbatch in flight."""
        return self._bytes("none", lambda memory: memory.total_bytes(0))

    @property
    def _microbatch(self) -> Linear:
        """Bytes of a microbatch in flight on each stage."""
        return self._bytes("microbatch", lambda memory: memory.stored_bytes)

    def _bytes(self, name: str, of: Callable[[StageMemory], float]) -> Linear:
        if ("", name) not in self._linear:
            one, two = (self.stages_with((n,) * self.stages).memory or () for n in (1, 2))
            self._linear["", name] = _through(list(map(of, one)), list(map(of, two)))
        return self._linear["", name]


def _through(one: Sequence[float], two: Sequence[float]) -> Linear:
    """The line through the figures of one and of two layers; a layer's is that of the first stage for all."""
    each = two[0] - one[0]
    return Linear(fixed=np.array(one) - each, each=np.full(len(one), each))
