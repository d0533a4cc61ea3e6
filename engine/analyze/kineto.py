"""Profiles of torch.profiler (Kineto), one of each rank, as torchtitan and Megatron write them.

Ops of microbatches have the names that torch.distributed.pipelining gives them (``Forward 3``, ``PP:1F3``).
Its 1F1B names none: there, what the host computes between its sends and receives are the ops. A profile of
GPUs without such names tells only when kernels run.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from engine.analyze import trace as ops
from engine.analyze.events import Events
from engine.analyze.host_ops import host_ops
from engine.analyze.trace import KIND_OF, Floats, Ints, Layout, Trace
from engine.errors import InputError

STEP = re.compile(r"ProfilerStep#(\d+)")
PLAIN = re.compile(r"(Forward|Backward) (\d+)")
ACTION = re.compile(r"PP:(\d+)(F|B|I|W)(\d+)")  # stage of the whole model, op, microbatch
NAMED = f"{PLAIN.pattern}|{ACTION.pattern}"
KINDS_OF = {
    "Forward": ops.FORWARD,
    "F": ops.FORWARD,
    "Backward": ops.BACKWARD,
    "B": ops.BACKWARD,
    "I": ops.BACKWARD,
    "W": ops.WEIGHT,
}
RECEIVES = r"(gloo|nccl|mpi|ucc):recv.*"
COMMUNICATION = r"(?i:.*nccl.*)"
MOST_RANKS = 100_000
LACKS_TRANSFERS = (
    "Transfers are not in this format: the replays take them as instant, and launch_slowdown is null."
)
LACKS_OPS = "The profile does not tell forwards from backwards: there are no replays and no slowdowns."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rank:
    """The ops of one rank: arrays of one length. position : −1 where names do not tell it."""

    rank: int
    pipeline: tuple[int, ...]  # ranks of its pipeline, first stage first
    kind: Ints
    position: Ints
    microbatch: Ints
    step: Ints
    start: Floats
    end: Floats

    def times_before(self) -> Ints:
        """How often each op was there before in its step: a step may run its schedule several times."""
        keys = (self.start, self.microbatch, self.position, self.kind, self.step)
        order = np.lexsort(keys)
        first = np.ones(len(order), dtype=np.bool_)
        first[1:] = np.any([key[order[1:]] != key[order[:-1]] for key in keys[1:]], axis=0)
        at = np.arange(len(order))
        counted = np.zeros(len(order), dtype=np.int64)
        counted[order] = at - np.maximum.accumulate(np.where(first, at, 0))
        return np.where(self.microbatch >= 0, counted, 0)


def is_profile(events: Events) -> bool:
    """Whether events are those of torch.profiler."""
    return "distributedInfo" in events.document or "deviceProperties" in events.document


def read_profiles(profiles: Iterable[tuple[Path, Events]], *, whole: bool) -> Trace:
    """The trace of a run's profiles.

    whole : whether all ranks must be there.

    Raises
    ------
    InputError
        A rank is missing or is there twice, or a profile has no ops.
    """
    ranks: dict[int, Rank] = {}
    world = 1
    for path, events in profiles:
        world = max(world, _whole(events.document, "world_size", 1, path))
        rank = _rank(path, events)
        if rank.rank in ranks:
            raise InputError(f"{path.name}: rank", rank.rank, "another file is of this rank too")
        ranks[rank.rank] = rank
    missing = sorted(set(range(world)) - set(ranks)) if whole else []
    if missing:
        raise InputError("rank", missing[0], f"no file of this rank; world_size is {world}")
    return _joined([ranks[number] for number in sorted(ranks)])


def _whole(document: dict[str, Any], field: str, missing: int, path: Path) -> int:
    info = document.get("distributedInfo")
    value = info.get(field, missing) if isinstance(info, dict) else missing
    if not isinstance(value, int) or not 0 <= value <= MOST_RANKS:
        raise InputError(f"{path.name}: distributedInfo.{field}", value, f"must be 0 to {MOST_RANKS:,}")
    return value


def _rank(path: Path, events: Events) -> Rank:
    base = events.document.get("baseTimeNanoseconds", 0)
    rows = list(_named(events)) or list(_unnamed(events))
    if not rows:
        raise InputError(f"{path.name}: traceEvents", None, "no forward, backward or kernel in the profile")
    columns = [np.concatenate(column) for column in zip(*rows, strict=True)]
    kind, position, microbatch, start, end = columns
    step = _steps(events, start)
    in_step = step >= 0
    if not in_step.any():
        raise InputError(f"{path.name}: traceEvents", None, "no op lies in a ProfilerStep")
    shift = (base if isinstance(base, int) else 0) * 1e-9
    number = _whole(events.document, "rank", 0, path)
    return Rank(
        rank=number,
        pipeline=_pipeline(events.document, number, path),
        kind=kind[in_step],
        position=position[in_step],
        microbatch=microbatch[in_step],
        step=step[in_step],
        start=start[in_step] + shift,
        end=end[in_step] + shift,
    )


def _pipeline(document: dict[str, Any], rank: int, path: Path) -> tuple[int, ...]:
    """Ranks of the pipeline of a rank, by the group that is called so; all ranks where there is none."""
    info = document.get("distributedInfo")
    groups = info.get("pg_config", []) if isinstance(info, dict) else []
    for group in groups if isinstance(groups, list) else []:
        if isinstance(group, dict) and re.search(r"(?i)\bpp|_pp|pipe", str(group.get("pg_desc", ""))):
            members = group.get("ranks")
            if isinstance(members, list) and rank in members:
                return tuple(members)
    return tuple(range(_whole(document, "world_size", 1, path)))


def _steps(events: Events, start: Floats) -> Ints:
    """The number of the profiler's step that each op starts in; −1 outside; 0 where none are marked."""
    marks = np.flatnonzero(events.matching(STEP.pattern) & events.of_category("user_annotation"))
    if not len(marks):
        return np.zeros(len(start), dtype=np.int64)
    numbers = np.array([int(STEP.fullmatch(events.names[code])[1]) for code in events.name[marks]])  # type: ignore[index]
    at = np.searchsorted(events.start[marks], start, side="right") - 1
    # Kernels run on after the host has left the step.
    on_host = not events.of_category("kernel").any()
    inside = (at >= 0) & ((start < events.end[marks][at]) | (not on_host))
    return np.where(inside, numbers[at], -1)


def _named(events: Events) -> Iterator[tuple[Any, ...]]:
    """Ops that annotations name: on the GPU where they are there, else on the host."""
    named = events.matching(NAMED)
    on_gpu = named & events.of_category("gpu_user_annotation")
    on_host = named & events.of_category("user_annotation")
    chosen = np.flatnonzero(on_gpu if on_gpu.any() else on_host)
    if not len(chosen):
        return
    meanings = {code: _meaning(events.names[code]) for code in np.unique(events.name[chosen]).tolist()}
    kind, position, microbatch = np.array([meanings[c] for c in events.name[chosen].tolist()]).T
    start, end = events.start[chosen], events.end[chosen]
    if on_gpu.any():
        start, end = _within_kernels(events, start, end)
    else:
        start = _after_receives(events, start, end)
    yield kind, position, microbatch, start, end


def _meaning(name: str) -> tuple[int, int, int]:
    if plain := PLAIN.fullmatch(name):
        return KIND_OF[KINDS_OF[plain[1]]], -1, int(plain[2])
    action = ACTION.fullmatch(name)
    assert action is not None
    return KIND_OF[KINDS_OF[action[2]]], int(action[1]), int(action[3])


def _after_receives(events: Events, start: Floats, end: Floats) -> Floats:
    """Starts of ops, each after the last receive that it waited for."""
    ends = np.sort(events.end[events.matching(RECEIVES)])
    if not len(ends):
        return start
    last = ends[np.maximum(np.searchsorted(ends, end, side="right") - 1, 0)]
    return np.where((last > start) & (last <= end), last, start)


def _within_kernels(events: Events, start: Floats, end: Floats) -> tuple[Floats, Floats]:
    """The time from the first to the last kernel that computes, within each op."""
    computes = events.of_category("kernel") & ~events.matching(COMMUNICATION)
    begins, ends = events.start[computes], np.maximum.accumulate(events.end[computes])
    if not len(begins):
        return start, end
    first, last = np.searchsorted(begins, start), np.searchsorted(begins, end) - 1
    there = first <= last
    first, last = np.minimum(first, len(begins) - 1), np.maximum(last, 0)
    begin, finish = np.maximum(begins[first], start), np.minimum(ends[last], end)
    return np.where(there, begin, start), np.where(there, np.maximum(finish, begin), end)


def _unnamed(events: Events) -> Iterator[tuple[Any, ...]]:
    """What the host computes between transfers, or the time in which any kernel runs."""
    computes = events.of_category("kernel") & ~events.matching(COMMUNICATION)
    if not computes.any():
        yield from host_ops(events)
        return
    start, end = events.start[computes], np.maximum.accumulate(events.end[computes])
    begins = np.flatnonzero(np.concatenate([[True], start[1:] > end[:-1]]))
    count = len(begins)
    none = np.full(count, -1)
    ends = end[np.concatenate([begins[1:] - 1, [len(end) - 1]])]
    yield np.full(count, KIND_OF[ops.KERNELS]), none, none, start[begins], ends


def _joined(ranks: Sequence[Rank]) -> Trace:
    places = _places(ranks)
    layout = Layout(
        replicas=1 + max(replica for replica, _ in places),
        stages=1 + max(stage for _, stage in places),
        chunks=max(len(np.unique(rank.position)) for rank in ranks),
        gpus=len(ranks),
    )
    sizes = [len(rank.kind) for rank in ranks]
    replica, stage = (np.repeat([place[at] for place in places], sizes).astype(np.int64) for at in (0, 1))
    kind, position, microbatch, step = (
        np.concatenate([getattr(rank, name) for rank in ranks]).astype(np.int64)
        for name in ("kind", "position", "microbatch", "step")
    )
    turn = np.concatenate([rank.times_before() for rank in ranks])
    if turn.any():  # each run of the schedule is a step
        step = step * (int(turn.max()) + 1) + turn
    chunks = [np.unique(rank.position, return_inverse=True)[1].ravel() for rank in ranks]
    chunk = np.concatenate(chunks).astype(np.int64)
    start, end = (np.concatenate([getattr(rank, name) for rank in ranks]) for name in ("start", "end"))
    named = microbatch >= 0
    order = np.concatenate([np.arange(size) for size in sizes])
    return Trace(
        format="kineto",
        layout=layout,
        kind=kind.astype(np.int8),
        replica=replica,
        stage=stage,
        step=step,
        index=np.where(named, microbatch * layout.chunks + chunk, order),
        chunk=np.where(named, chunk, -1),
        position=np.where(named & (position < 0), stage, position),
        microbatch=microbatch,
        start=start - start.min(),
        end=end - start.min(),
        duration=end - start,
        notes=(LACKS_TRANSFERS if named.all() else LACKS_OPS,),
    )


def _places(ranks: Sequence[Rank]) -> list[tuple[int, int]]:
    """Replica and stage of each rank: by the stages that its ops name, else by its pipeline's group."""
    if all((rank.position >= 0).all() for rank in ranks):
        held = [tuple(np.unique(rank.position).tolist()) for rank in ranks]
        stages = {positions: number for number, positions in enumerate(sorted(set(held)))}
        return [(held[:at].count(held[at]), stages[held[at]]) for at in range(len(held))]
    pipelines = sorted({rank.pipeline for rank in ranks})
    present = {rank.rank for rank in ranks}
    members = {pipeline: [rank for rank in pipeline if rank in present] for pipeline in pipelines}
    return [(pipelines.index(r.pipeline), members[r.pipeline].index(r.rank)) for r in ranks]
