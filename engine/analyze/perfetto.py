"""Chrome traces with an event for each op: a process is a replica, a thread a stage; names are as F3."""

import re
from pathlib import Path
from typing import Any

import numpy as np

from engine.analyze.events import MICROSECOND, Events
from engine.analyze.spans import Columns
from engine.analyze.trace import Floats
from engine.errors import InputError
from engine.simulate.trace import FIRST_LINK

_OP = re.compile(r"([FRBW])(?:orward|ackward)?[ _]?(\d+)(?:\.(\d+))?", re.IGNORECASE)
_WORK = ("all_reduce", "optimizer")
_PAYLOAD = re.compile(r"(activation|gradient) ?(\d+)")


def read_perfetto(events: Events, path: Path) -> Columns:
    """The spans that such events are.

    Raises
    ------
    InputError
        No event is named as an op of a microbatch, or one has no process or thread.
    """
    names = [_meaning(name) for name in events.names]
    used = np.array([*(meaning is not None for meaning in names), False])[events.name]
    if not used.any():
        raise InputError(f"{path.name}: name", None, "no event is named as an op, such as F3 or Backward 3")
    for field, values in (("pid", events.process), ("tid", events.thread)):
        if np.isnan(values[used]).any():
            raise InputError(f"{path.name}: {field}", None, "every op needs one, a number")
    texts = sorted({value for meaning in names if meaning for value in meaning[:3] if value})
    code = {text: number for number, text in enumerate(texts)} | {None: -1}
    by_name = [meaning or (None, None, None, np.nan, np.nan) for meaning in names]
    columns = {
        field: np.array([code[row[at]] for row in by_name], dtype=np.int64)[events.name[used]]
        for at, field in enumerate(("track", "op", "payload"))
    }
    numbered = np.array([row[3:] for row in by_name], dtype=np.float64)[events.name[used]]
    on_gpu = columns["track"] == code.get("gpu", -2)
    numbers = _numbers(events, used, on_gpu, numbered)
    return Columns(names=tuple(texts), texts=columns, numbers=numbers)


def _meaning(name: str) -> tuple[Any, ...] | None:
    """Track, op, payload, microbatch and chunk that a name stands for; None where it is no op."""
    if match := _OP.fullmatch(name):
        return "gpu", match[1].upper(), None, float(match[2]), float(match[3] or np.nan)
    if name in _WORK:
        return "gpu", name, None, np.nan, np.nan
    if match := _PAYLOAD.fullmatch(name):
        return "wan", None, match[1], float(match[2]), np.nan
    return None


def _numbers(events: Events, used: Any, on_gpu: Any, numbered: Floats) -> dict[str, Floats]:
    arguments = {name: values[used] for name, values in events.arguments.items()}
    thread = events.thread[used]
    # Processes and threads in their order; links of `--trace` follow behind the GPUs.
    replicas = np.unique(events.process[used])
    stages = np.unique(thread[on_gpu])
    hop, back = np.divmod(thread - FIRST_LINK, 2)
    start = events.start[used]
    origin = float(events.start.min())
    arrives = arguments["arrives_us"] * MICROSECOND
    return {
        "pipeline": np.searchsorted(replicas, events.process[used]).astype(np.float64),
        "stage": np.searchsorted(stages, thread).astype(np.float64),
        "from_stage": np.where(on_gpu, np.nan, hop + back),
        "to_stage": np.where(on_gpu, np.nan, hop + 1 - back),
        "microbatch": np.where(np.isnan(numbered[:, 0]), arguments["microbatch"], numbered[:, 0]),
        "chunk": np.where(np.isnan(numbered[:, 1]), arguments["chunk"], numbered[:, 1]),
        "start": start - origin,
        "end": events.end[used] - origin,
        "arrives": arrives - origin,
        "iteration": arguments["iteration"],
    }
