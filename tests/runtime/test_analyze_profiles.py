"""`meridian analyze` of profiles that torch.profiler records: it finds the bubbles that the stages know."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine.analyze.formats import load
from engine.analyze.result import analyze
from engine.errors import InputError
from tests.runtime.profiled_pipeline import BACKWARD_S, CASES, FORWARD_S, MICROBATCHES, STEPS

LIMIT_S = 240


@pytest.fixture(scope="module")
def profiles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profiles of all cases, each in a folder of its name."""
    folder = tmp_path_factory.mktemp("profiles")
    line = [sys.executable, "-m", "tests.runtime.profiled_pipeline", str(folder)]
    subprocess.run(line, stdout=subprocess.DEVNULL, check=True, timeout=LIMIT_S)
    return folder


@pytest.fixture(scope="module", params=CASES, ids=lambda case: f"{case[0]}-{case[1]}")
def recorded(request: pytest.FixtureRequest, profiles: Path) -> tuple[str, int, Path]:
    """Schedule, ranks, and the folder with their profiles and what they wrote down."""
    kind, world = request.param
    return kind, world, profiles / f"{kind}-{world}"


@pytest.fixture(scope="module")
def answer(recorded: tuple[str, int, Path]) -> dict[str, Any]:
    """What is said of the profiles."""
    return analyze(load(recorded[2])).as_dict()


def test_the_layout_and_every_op_are_found(recorded: tuple[str, int, Path], answer: dict[str, Any]) -> None:
    kind, world, _ = recorded
    chunks = 2 if kind == "interleaved" else 1
    assert answer["format"] == "kineto"
    assert answer["layout"] == {"replicas": 1, "stages": world, "chunks": chunks, "gpus": world}
    assert answer["steps"] == STEPS
    assert answer["ops"] == 2 * MICROBATCHES * chunks * world * STEPS


def test_utilization_is_what_the_stages_wrote_down(
    recorded: tuple[str, int, Path], answer: dict[str, Any]
) -> None:
    """The stages know when they worked. Torch's own work counts too, so we may find a little more."""
    _, world, folder = recorded
    wrote = [json.loads((folder / f"rank{rank}.worked").read_text()) for rank in range(world)]
    busy_s = window_s = 0.0
    for step in range(STEPS):
        times = np.array([interval for rank in wrote for interval in rank[step]])
        busy_s += float((times[:, 1] - times[:, 0]).sum())
        window_s += float(times[:, 1].max() - times[:, 0].min())
    known = busy_s / (world * window_s)
    assert 0.85 * known < answer["utilization"] < min(1.15 * known + 0.05, 1)
    assert answer["bubbles"]["fraction"] == pytest.approx(1 - answer["utilization"])
    assert 0.8 * window_s < answer["step_s"] * STEPS < 1.25 * window_s


def test_the_replay_is_near_the_formula(recorded: tuple[str, int, Path], answer: dict[str, Any]) -> None:
    """GPipe and 1F1B take (M + P - 1) (F + B) if nothing delays them; a busy machine only adds to that."""
    kind, world, _ = recorded
    assert answer["no_delay_step_s"] <= answer["step_s"] * 1.001
    if kind != "interleaved":
        formula_s = (MICROBATCHES + world - 1) * (FORWARD_S + BACKWARD_S)
        assert answer["ideal_step_s"] > 0.95 * formula_s
    assert answer["launch_slowdown"] is None
    assert "Transfers are not in this format" in answer["notes"][0]
    assert set(answer["slowdown_by_op"]) == {"forward-compute", "backward-compute"}


def test_a_rank_that_is_missing_is_named(recorded: tuple[str, int, Path], tmp_path: Path) -> None:
    _, world, folder = recorded
    for rank in range(world - 1):
        shutil.copy(folder / f"rank{rank}_trace.json", tmp_path)
    with pytest.raises(InputError, match=f"rank: {world - 1}: no file of this rank"):
        load(tmp_path)
