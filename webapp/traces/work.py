"""The work at traces: analysis and what-ifs, each in a process of its own with a bound on its memory."""

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings

from engine.errors import InputError
from webapp.computations.own_process import json_lines
from webapp.computations.wires import Wires
from webapp.planning.plan_cell import MOST_TIMELINE_SPANS
from webapp.traces.models import Trace, TraceFile
from webapp.traces.services import note_figures

META = (".yaml", ".yml")  # the layout of a parquet trace
PROCESS = "webapp.traces.analysis"


def analyze_trace(request: dict[str, Any], wires: Wires) -> Iterator[dict[str, Any]]:
    """{"analysis": as `meridian analyze --json`, "timeline": what the canvas draws of one iteration}."""
    wires.of = 1
    trace = Trace.objects.get(pk=wires.computation.pk)
    answer: dict[str, Any] = {}
    for part in _answers(trace, [], wires):
        answer |= part
    if "timeline" in answer:
        note_figures(wires.computation, answer["analysis"])
        yield answer


def answer_what_ifs(request: dict[str, Any], wires: Wires) -> Iterator[dict[str, Any]]:
    """{"what_if": [one answer for each question]}, as they come."""
    questions = request["questions"]
    wires.of = len(questions)
    answers: list[dict[str, Any]] = []
    for part in _answers(wires.computation.of_trace.trace, questions, wires):
        answers.append(part["what_if"])
        yield {"what_if": list(answers)}


def _answers(trace: Trace, questions: list[str], wires: Wires) -> Iterator[dict[str, Any]]:
    """What the process writes about the trace. Raises InputError where it refuses the trace."""
    with tempfile.TemporaryDirectory(prefix="meridian-trace-") as name:
        folder = Path(name)
        wires.publish({"at": "reading the files"})
        wires.beat()
        path, meta = _unpacked(trace, folder)
        wires.publish({"at": "answering" if questions else "analysing"})
        wires.beat()
        document = {
            "folder": str(folder),
            "path": str(path),
            "meta": str(meta) if meta else None,
            "questions": questions,
            "most_spans": MOST_TIMELINE_SPANS,
            "memory_bytes": settings.TRACE_MEMORY_BYTES,
        }
        for part in json_lines(PROCESS, [json.dumps(document)], wires):
            if "refused" in part:
                raise InputError(*part["refused"])
            yield part


def _unpacked(trace: Trace, folder: Path) -> tuple[Path, Path | None]:
    """The trace and its meta file as files: a folder of its own for the profiles of several ranks."""
    files = list(trace.files.all())
    several = sum(not file.name.endswith(META) for file in files) > 1
    target = folder / "profiles" if several else folder
    target.mkdir(exist_ok=True)
    for file in files:
        write_file(file, target)
    meta = next((target / file.name for file in files if file.name.endswith(META)), None)
    if several:
        return target, None
    return next(target / file.name for file in files if not file.name.endswith(META)), meta


def write_file(file: TraceFile, folder: Path) -> Path:
    """An uploaded file, as it was uploaded, in `folder`."""
    path = folder / file.name
    with path.open("wb") as target:
        contents = file.parts.order_by("number").values_list("content", flat=True)
        for content in contents.iterator(chunk_size=1):
            target.write(content)
    return path
