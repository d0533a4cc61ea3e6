"""Reads a schedule from its text, the `str` of a Schedule."""

import re

import numpy as np

from engine.schedule.ir import NO_OP, OpKind, Schedule
from engine.schedule.traversal import Traversal

_HEAD = re.compile(
    r"microbatches (\d+), chunks (\d+), traversal (straight|loop|wave), sharing (spatial|temporal), "
    r"gate (none|jit|late)"
)
_HEAD_READS = (
    "microbatches M, chunks C, traversal straight|loop|wave, sharing spatial|temporal, gate none|jit|late"
)
_GPU = re.compile(r"P(\d+) S(\d+):(.*)")
_LINK = re.compile(r"link (\d+)>(\d+):(.*)")
_OP = re.compile(r"([FRBW])(\d+)(?:\.(\d+))?")
_SENT = re.compile(r"P(\d+)/(\d+)(?:\.(\d+))?")


def sharing_of(text: str) -> str:
    """Sharing of the WAN hops of the schedule in `text`, read from its first line alone.

    Raises ValueError if that line cannot be read.
    """
    return _head(text.strip().partition("\n")[0].strip())[4]


def parse_schedule(text: str) -> Schedule:
    """Return the schedule in `text`: a head line, a line per GPU, a line per shared link.

    Raises
    ------
    ValueError
        A line cannot be read, a GPU is missing or listed twice, or a microbatch or chunk is out of range.
    """
    head, *lines = [line.strip() for line in text.strip().splitlines()] or [""]
    match = _head(head)
    microbatches, chunks = int(match[1]), int(match[2])
    gpus: dict[tuple[int, int], list[int]] = {}
    links: dict[tuple[int, int], np.ndarray] = {}
    for line in lines:
        if gpu := _GPU.fullmatch(line):
            key = int(gpu[1]), int(gpu[2])
            if key in gpus:
                raise ValueError(f"{line!r}: this GPU is listed twice")
            gpus[key] = [_op_code(word, microbatches, chunks) for word in gpu[3].split()]
        elif link := _LINK.fullmatch(line):
            codes = [_sent_code(word, microbatches, chunks) for word in link[3].split()]
            links[int(link[1]), int(link[2])] = np.array(codes, dtype=np.int32)
        else:
            raise ValueError(f"{line!r}: must begin with 'P<pipeline> S<stage>:' or 'link <from>><to>:'")
    ops = _table(gpus)
    return Schedule(
        microbatches=microbatches,
        traversal=Traversal(name=match[3], stages=ops.shape[1], chunks=chunks),  # type: ignore[arg-type]
        ops=ops,
        sharing=match[4],  # type: ignore[arg-type]
        link_order=links,
        recompute_gate=match[5],  # type: ignore[arg-type]
    )


def _head(line: str) -> re.Match[str]:
    match = _HEAD.fullmatch(line)
    if not match:
        raise ValueError(f"{line!r}: must read '{_HEAD_READS}'")
    return match


def _op_code(word: str, microbatches: int, chunks: int) -> int:
    match = _OP.fullmatch(word)
    if not match:
        raise ValueError(f"{word!r}: must be an op such as F3 or B0.1")
    return _number(word, match[2], match[3], microbatches, chunks) * 4 + int(OpKind[match[1]])


def _sent_code(word: str, microbatches: int, chunks: int) -> int:
    match = _SENT.fullmatch(word)
    if not match:
        raise ValueError(f"{word!r}: must be a transfer such as P0/3")
    return int(match[1]) * chunks * microbatches + _number(word, match[2], match[3], microbatches, chunks)


def _number(word: str, microbatch: str, chunk: str | None, microbatches: int, chunks: int) -> int:
    m, c = int(microbatch), int(chunk or 0)
    if m >= microbatches or c >= chunks:
        raise ValueError(f"{word!r}: out of range for {microbatches} microbatches and {chunks} chunks")
    return c * microbatches + m


def _table(gpus: dict[tuple[int, int], list[int]]) -> np.ndarray:
    pipelines = 1 + max((p for p, _ in gpus), default=-1)
    stages = 1 + max((s for _, s in gpus), default=-1)
    if not gpus or len(gpus) != pipelines * stages:
        raise ValueError(
            f"{pipelines} pipelines of {stages} stages need {pipelines * stages} lines, not {len(gpus)}"
        )
    ops = np.full((pipelines, stages, max(map(len, gpus.values()))), NO_OP, dtype=np.int32)
    for (pipeline, stage), codes in gpus.items():
        ops[pipeline, stage, : len(codes)] = codes
    return ops
