"""A run that resumes goes on as if it had never stopped: to the bit in the same layout, and in any other."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.commands.train import command
from engine.job.checkpoint.place import open_place
from tests.runtime.held_out import held_out_loss
from tests.runtime.jobs import Run, document, job

CLOSE = {"fp32": 1e-5, "fp64": 1e-9}


def run(folder: Path, **changes: Any) -> dict[str, Any]:
    return Run(job(**changes), str(folder / "log")).result()


def at(folder: Path, step: int) -> str:
    name = next(n for n in open_place(str(folder)).names() if n.startswith(f"step-{step:09d}"))
    return f"{folder}/{name}"


SMALL = {"pipelines": 1, "stages": 2, "dc_of_stage": [0, 1], "microbatches": 4, "micro_batch": 2}


def command_answer(folder: Path, **changes: Any) -> Any:
    (folder / "job.json").write_text(json.dumps(document(**{**SMALL, **changes})))
    return CliRunner().invoke(command, [str(folder / "job.json"), "--json"], standalone_mode=False)


@pytest.mark.timeout(1200)  # two runs, each a second on an idle machine and minutes on a busy one
@pytest.mark.long
def test_same_layout_to_the_bit_and_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    saves = {"dir": str(tmp_path / "saved"), "every": 2}
    validation = {"every": 2, "sequences": 5}
    whole = run(tmp_path, **SMALL, steps=5, checkpoint=saves, validation=validation)
    of = job(**SMALL, validation=validation)
    assert [row["step"] for row in whole["validation"]] == [2, 4, 5]
    assert whole["validation"][-1]["loss"] == pytest.approx(held_out_loss(of, tmp_path / "saved"), rel=1e-5)
    assert whole["resumed_from"] is None
    assert whole["checkpoints"] == {"saved": 3, "failed": 0, "last_step": 5}
    middle = at(tmp_path / "saved", 2)
    answer = command_answer(tmp_path, steps=5, resume=middle, validation=validation)
    assert answer.return_value == 0, answer.output
    assert "resumes after step 2" in answer.stderr
    same = json.loads(answer.stdout)
    assert same["resumed_from"] == 2
    assert same["losses"] == whole["losses"][2:]
    assert same["validation"] == whole["validation"][1:]
    assert same["grad_norms"] == whole["grad_norms"][2:]
    assert same["params_sha256"] == whole["params_sha256"]

    def refused(**changes: Any) -> str:
        return str(command_answer(tmp_path, **{"validation": validation, **changes}).exception)

    assert "another seed: 7, this job has 8" in refused(seed=8, resume=middle)
    assert "tokenizer or validation.share" in refused(validation=None, resume=middle)
    assert "more steps are needed" in refused(steps=5, checkpoint=saves, resume=True)
    assert "holds no complete checkpoint" in refused(resume=str(tmp_path))
    assert "needs checkpoint.dir" in refused(resume=True)


WAVE = {
    "policy": "crosspipe-wave",
    "chunks": 2,
    "stages": 2,
    "dc_of_stage": [0, 1],
    "pipelines": 1,
    "microbatches": 6,
    "recompute": False,
}
LAYOUTS = [
    {
        "policy": "1f1b",
        "recompute": False,
        "stages": 1,
        "dc_of_stage": [0],
        "pipelines": 1,
        "microbatches": 6,
    },
    {"policy": "varuna", "sharing": "temporal", "dc_of_stage": [0, 1, 1], "pipelines": 1, "microbatches": 6},
    {
        "policy": "gpipe",
        "stages": 2,
        "dc_of_stage": [0, 1],
        "sharing": "spatial",
        "layers_per_stage": [1, 2],
        "micro_batch": 1,
        "microbatches": 6,
    },
]


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("dtype", ["fp32", "fp64"])
def test_a_chain_of_layouts_equals_the_run_that_never_stopped(dtype: str, tmp_path: Path) -> None:
    check_chain(tmp_path, [{}, *LAYOUTS], dtype=dtype, clip=1.0)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_from_atlas_to_a_wave_of_chunks_and_back(tmp_path: Path) -> None:
    model = {"layers": 4, "hidden": 32, "heads": 2, "seq": 16}
    check_chain(tmp_path, [{}, WAVE, {}], dtype="fp64", model=model)


TP_LAYOUTS = [
    {"tp": 2, "stages": 2, "dc_of_stage": [0, 1]},
    {"policy": "gpipe", "stages": 3, "dc_of_stage": [0, 1, 1], "sharing": "spatial"},
    {
        "tp": 4,
        "policy": "1f1b",
        "stages": 1,
        "dc_of_stage": [0],
        "pipelines": 1,
        "microbatches": 6,
        "recompute": False,
    },
    {
        "tp": 2,
        "policy": "zb-h1",
        "stages": 2,
        "dc_of_stage": [0, 1],
        "pipelines": 1,
        "microbatches": 6,
        "recompute": False,
    },
]
WIDE = {
    "datacenters": [{"name": "north", "gpus": 4}, {"name": "south", "gpus": 4}],
    "model": {"family": "llama", "layers": 3, "hidden": 32, "heads": 8, "kv_heads": 4, "ffn": 64, "seq": 16},
}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_from_two_ranks_a_stage_to_one_to_four_and_back(tmp_path: Path) -> None:
    check_chain(tmp_path, TP_LAYOUTS, dtype="fp64", clip=1.0, **WIDE)


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_two_ranks_a_stage_resume_to_the_bit(tmp_path: Path) -> None:
    saves = {"dir": str(tmp_path / "saved"), "every": 2}
    two = {**SMALL, **WIDE, "tp": 2}
    whole = run(tmp_path, **two, steps=4, checkpoint=saves)
    again = run(tmp_path, **two, steps=4, resume=at(tmp_path / "saved", 2))
    assert again["losses"] == whole["losses"][2:]
    assert again["params_sha256"] == whole["params_sha256"]


def check_chain(folder: Path, layouts: list[dict[str, Any]], **common: Any) -> None:
    """A run that goes on every two steps in the next layout has the losses of the run that did not."""
    whole = run(folder, **common, steps=2 * len(layouts))
    saves = {"dir": str(folder), "every": 2}
    losses, norms = [], []
    for number, layout in enumerate(layouts):
        changes = {**common, **layout, "steps": 2 * (number + 1)}
        part = run(folder, **changes, checkpoint=saves, resume=True)
        assert part["resumed_from"] == (2 * number or None)
        losses += part["losses"]
        norms += part["grad_norms"]
    assert losses == pytest.approx(whole["losses"], rel=CLOSE[common["dtype"]])
    assert norms == pytest.approx(whole["grad_norms"], rel=CLOSE[common["dtype"]])


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_run_that_is_killed_again_and_again_ends_with_the_same_bits(tmp_path: Path) -> None:
    whole = run(tmp_path, steps=9)
    saves = {"dir": str(tmp_path), "every": 1}
    for seen in (1, 4):
        broken = Run(job(steps=9, checkpoint=saves, resume=True), str(tmp_path / "log"))
        while not any(e["step"] >= seen for e in broken.of_kind("checkpoint")) and broken.group.running():
            broken.group.wait(0.01)
        broken.group.stop(0.0)
    last = run(tmp_path, steps=9, checkpoint=saves, resume=True)
    assert last["params_sha256"] == whole["params_sha256"]
    assert last["losses"] == whole["losses"][last["resumed_from"] or 0 :]
