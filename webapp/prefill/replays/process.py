"""A replay for another process: `python -m webapp.prefill.replays.process FILE` writes lines of JSON.

It loads no Django. The lines are {"trace": figures of the requests}, then {"result"} for each order and
load (as `meridian prefill replay --json`, with the order), or {"refused": [field, value, allowed]}. The
process may be ended at any time.
"""

import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import Infeasible, InputError
from engine.inputs import parse
from engine.prefill.replay import replay
from engine.prefill.request import Bubbles, ReplayRequest
from engine.prefill.trace import Trace, read_trace


def answers(work: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines for {"document", "loads", "orders"}. Raises InputError where the trace is refused."""
    document: dict[str, Any] = work["document"]
    request = parse(ReplayRequest, document)
    trace = read_trace(request.trace)
    yield {"trace": figures(trace)}
    pattern = request.bubbles.pattern()  # simulated once
    if isinstance(pattern, Infeasible):
        raise InputError("bubbles", None, pattern.reason)
    bubbles = Bubbles.of(pattern)
    for order in work["orders"]:
        for load in work["loads"]:
            controller = {**document["controller"], "order": order}
            replay_request = {**document, "bubbles": bubbles, "load": load, "controller": controller}
            result = replay(parse(ReplayRequest, replay_request), trace=trace)
            assert not isinstance(result, Infeasible), "the bubbles are there"
            yield {"result": {"order": order, **result.as_dict()}}


def figures(trace: Trace) -> dict[str, Any]:
    """Of the trace itself: requests, the time from the first to the last (ms), tokens."""
    return {
        "requests": len(trace),
        "span_ms": float(trace.arrival_ms[-1]),
        "tokens_p50": float(np.median(trace.tokens)),
        "tokens_max": int(trace.tokens.max()),
    }


def main(work: dict[str, Any]) -> None:
    """Write the answers, within the memory that `work` allows."""
    most = work["memory_bytes"]
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most, before[1]))
    try:
        for answer in answers(work):
            _write(answer)
    except InputError as error:
        value = error.value if isinstance(error.value, str | int | float) else None
        _write({"refused": [error.field, value if error.field != "trace" else None, error.allowed]})
    except MemoryError:
        resource.setrlimit(resource.RLIMIT_DATA, before)  # for the answer
        allowed = f"needs more than {most / 1e9:g} GB of memory: upload a shorter one"
        _write({"refused": ["trace", None, allowed]})


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line, allow_nan=False) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))
