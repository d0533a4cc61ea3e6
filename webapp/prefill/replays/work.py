"""The work at a replay: each load in each order, in a process of its own with a bound on its memory."""

import json
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from django.conf import settings

from engine.errors import InputError
from webapp.computations.own_process import json_lines
from webapp.computations.wires import Wires
from webapp.traces.models import TraceFile
from webapp.traces.work import write_file

PROCESS = "webapp.prefill.replays.process"


def replay_requests(request: dict[str, Any], wires: Wires) -> Iterator[dict[str, Any]]:
    """{"trace": figures of the requests, "results": each as of `meridian prefill replay --json`}."""
    wires.of = len(request["loads"]) * len(request["orders"])
    answer: dict[str, Any] = {"results": []}
    with tempfile.TemporaryDirectory(prefix="meridian-replay-") as name:
        folder = Path(name)
        wires.publish({"at": "reading the trace"})
        wires.beat()
        work = {
            "document": {**request["document"], "trace": _trace(request, wires, folder)},
            "loads": request["loads"],
            "orders": request["orders"],
            "memory_bytes": settings.TRACE_MEMORY_BYTES,
        }
        path = folder / "work.json"
        path.write_text(json.dumps(work), encoding="utf-8")
        for part in json_lines(PROCESS, [str(path)], wires):
            if "refused" in part:
                raise InputError(*part["refused"])
            if "trace" in part:
                answer["trace"] = part["trace"]
                wires.publish({"at": "replaying"})
                continue
            answer["results"] = [*answer["results"], part["result"]]
            yield dict(answer)


def _trace(request: dict[str, Any], wires: Wires, folder: Path) -> str:
    """The name of a shipped trace, or the path of an uploaded one."""
    name: str = request["trace"] or f"of:{wires.computation.pk}"
    kind, _, replay = name.partition(":")
    if kind != "of":
        return name
    file = TraceFile.objects.filter(trace=uuid.UUID(replay)).first()
    if file is None:
        raise InputError("trace", None, "the replay that it was uploaded with is deleted: upload it again")
    return str(write_file(file, folder))
