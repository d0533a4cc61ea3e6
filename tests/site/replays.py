"""Replays for tests: of few requests, so that each takes some hundredths of a second."""

import json
from functools import cache
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile

from tests.site.world import World
from webapp.computations import services as computations
from webapp.computations.computing import work_at
from webapp.computations.models import Computation
from webapp.prefill.replays.forms import ReplayForm
from webapp.prefill.replays.process import answers
from webapp.prefill.services import start_replay

# Ten prompts of 100 tokens, 6 s apart.
CSV = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:00:{6 * i:02}.0,100,5\n" for i in range(10)
)


def trace_file(content: str = CSV, name: str = "prompts.csv") -> SimpleUploadedFile:
    return SimpleUploadedFile(name, content.encode())


def values(world: World, **changes: Any) -> dict[str, Any]:
    """What the form is sent: its own first values, but few requests and two loads."""
    form = ReplayForm(user=world.users["operator"])
    first = {name: field.initial for name, field in form.fields.items() if field.initial not in (None, "")}
    few = {"team": world.team.pk, "requests": 60, "loads": "20, 200"}
    return {**first, **few, **changes}


def question(world: World, **changes: Any) -> dict[str, Any]:
    """What a replay's computation keeps."""
    file = changes.pop("file", None)
    form = ReplayForm(values(world, **changes), {"file": file} if file else {}, user=world.users["operator"])
    assert form.is_valid(), form.errors
    return form.question


def started(world: World, *files: SimpleUploadedFile, **changes: Any) -> Computation:
    """A replay of the world's team that waits for its worker; of the uploaded file where there is one."""
    if files:
        changes |= {"trace": "upload", "file": files[0]}
    query = question(world, **changes)
    return start_replay(world.users["operator"], team=world.team, name="Bursts", request=query, files=files)


def answered(world: World) -> Computation:
    """A replay whose answer was computed once for all tests of this process."""
    computation = started(world)
    claimed = computations.claim(computation.pk)
    assert claimed is not None
    computations.finish(claimed, _answer(json.dumps(computation.request)))
    computation.refresh_from_db()
    return computation


@cache
def _answer(request: str) -> dict[str, Any]:
    query = json.loads(request)
    work = {**query, "document": {**query["document"], "trace": query["trace"]}}
    trace, *results = answers(work)
    return {**trace, "results": [line["result"] for line in results]}


def replay(world: World, *files: SimpleUploadedFile, **changes: Any) -> Computation:
    """A replay with its answer."""
    computation = started(world, *files, **changes)
    work_at(computation.pk)
    computation.refresh_from_db()
    return computation
