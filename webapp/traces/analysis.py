"""A trace's analysis for another process: `python -m webapp.traces.analysis DOCUMENT` writes lines of JSON.

It loads no Django. The lines are {"analysis"} and {"timeline"}, or {"what_if"} for each question, or
{"refused": [field, value, allowed]}. The process may be ended at any time.
"""

import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from engine.analyze.formats import Loaded, load
from engine.analyze.result import analyze
from engine.analyze.what_if import what_if
from engine.errors import InputError
from webapp.traces.timeline import drawn


def answers(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The lines for a document of `webapp.traces.work`. Raises InputError where the trace is refused."""
    loaded = load(Path(document["path"]), Path(document["meta"]) if document["meta"] else None)
    if document["questions"]:
        for question in document["questions"]:
            yield {"what_if": _answered(loaded, question)}
        return
    analysis = analyze(loaded)
    yield {"analysis": analysis.as_dict()}
    yield {"timeline": drawn(analysis, document["most_spans"])}


def _answered(loaded: Loaded, question: str) -> dict[str, Any]:
    """The answer to one question; what the trace cannot tell is a reason, and the others are answered."""
    try:
        return what_if(loaded, question).as_dict()
    except InputError as error:
        return {"what_if": question, "reason": error.allowed, "base_s": None, "step_s": None} | {
            "speedup": None,
            "utilization": None,
            "bubble_fraction": None,
        }


def main(document: dict[str, Any]) -> None:
    """Write the answers, within the memory that the document allows."""
    most = document["memory_bytes"]
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    try:
        for answer in answers(document):
            _write(answer)
    except InputError as error:
        parts = (error.field.replace("TRACE", "Trace"), error.value, error.allowed)
        _write({"refused": [_without(part, document["folder"]) for part in parts]})
    except MemoryError:
        allowed = f"needs more than {most / 1e9:g} GB of memory: upload fewer iterations"
        _write({"refused": ["trace", None, allowed]})


def _without(text: Any, folder: str) -> Any:
    """A part of an error that names files without the folder that they were in."""
    return text.replace(f"{folder}/", "") if isinstance(text, str) else text


def _write(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line, allow_nan=False) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
