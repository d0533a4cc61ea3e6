"""Traces for tests: small files of known figures, uploaded and analysed without a worker."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile

from engine.inputs import parse
from engine.schedule.scenario import Scenario
from engine.simulate import simulate
from tests.site.world import World
from webapp.computations import services as computations
from webapp.computations.computing import work_at
from webapp.computations.models import Computation, ComputationKind
from webapp.traces.services import note_figures, upload_trace

# 1F1B, P = 2, M = 4, F = 1, B = 2: (M + P − 1)·(F + B) = 15, of which a GPU computes 12.
PIPELINE = {
    "stages": 2,
    "microbatches": 4,
    "policy": "1f1b",
    "times": {"forward": 1, "backward": 2},
}
STEP_S, UTILIZATION = 15.0, 0.8
BYTEDANCE = Path(__file__).parents[1] / "traces" / "bytedance"


@cache
def spans(**changes: Any) -> bytes:
    """The answer of `meridian simulate --json` to PIPELINE with `changes`."""
    result = simulate(parse(Scenario, {**PIPELINE, **changes}))
    return json.dumps(result.as_dict()).encode()


def file_of(name: str = "spans.json", content: bytes | None = None) -> SimpleUploadedFile:
    """An upload; the spans of PIPELINE unless `content` says otherwise."""
    return SimpleUploadedFile(name, spans() if content is None else content)


def uploaded(world: World, *files: SimpleUploadedFile, name: str = "Two stages") -> Computation:
    """A trace of the world's team that waits for its worker."""
    chosen = files or (file_of(),)
    return upload_trace(world.users["operator"], team=world.team, name=name, files=chosen)


def analysed(world: World, *files: SimpleUploadedFile) -> Computation:
    """A trace with its analysis."""
    computation = uploaded(world, *files)
    work_at(computation.pk)
    computation.refresh_from_db()
    return computation


_answers: list[dict[str, Any]] = []  # to the spans of PIPELINE, once a process has analysed them


def trace(world: World) -> Computation:
    """The world's one analysed trace."""
    done = Computation.objects.filter(team=world.team, kind=ComputationKind.TRACE, state="done").first()
    if done is not None:
        return done
    if not _answers:
        computation = analysed(world)
        _answers.append(computation.answer or {})
        return computation
    computation = computations.claim(uploaded(world).pk)
    assert computation is not None
    note_figures(computation, _answers[0]["analysis"])
    computations.finish(computation, _answers[0])
    return computation
