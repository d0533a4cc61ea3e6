"""What a resumed run changes against its checkpoint: its fields, and what the learning rate does."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from engine.commands.train import command
from engine.errors import InputError
from engine.job.checkpoint.manifest import find
from engine.job.checkpoint.resuming import (
    changes,
    rate_change,
    saved_sections,
    with_kept_rate,
    with_rate_of,
)
from engine.job.learning_rate import LearningRateSchedule
from engine.job.losses import rate_of
from tests.runtime.jobs import document, job
from tests.runtime.test_checkpoint_saving import saved

SCHEDULES = st.builds(
    LearningRateSchedule,
    warmup_steps=st.integers(0, 20),
    decay=st.sampled_from(["constant", "cosine"]),
    final=st.floats(0, 1),
)


@given(SCHEDULES, st.integers(21, 60), st.integers(0, 60), st.floats(1e-5, 1))
def test_a_kept_schedule_goes_on_and_stays_where_it_ended(
    schedule: LearningRateSchedule, steps: int, more: int, lr: float
) -> None:
    before = job(steps=steps).with_fields("optimizer", lr=lr, lr_schedule=schedule)
    after = with_rate_of(job(steps=steps + more, lr=0.5), before.optimizer)
    assert [rate_of(after, step) for step in range(steps)] == [rate_of(before, step) for step in range(steps)]
    ends = rate_of(before, steps - 1)
    assert [rate_of(after, step) for step in range(steps, steps + more)] == pytest.approx([ends] * more)
    assert rate_change(after, before.optimizer, steps // 2) == []
    # A second resume keeps the first one's.
    again = with_rate_of(job(steps=steps + 2 * more), after.optimizer)
    assert rate_of(again, steps + more) == rate_of(after, steps + more)


def test_the_decay_ends_after_the_warm_up() -> None:
    with pytest.raises(InputError, match=r"decay_steps.*at least warmup_steps = 3"):
        job(steps=5, lr_schedule={"warmup_steps": 3, "decay": "cosine", "decay_steps": 2})


def rates(folder: Path, **changes: Any) -> tuple[list[float], str]:
    """The learning rates of a run's iterations, and what the command says."""
    metrics = folder / "metrics.csv"
    small = {"pipelines": 1, "stages": 2, "dc_of_stage": [0, 1], "microbatches": 4, "micro_batch": 2}
    (folder / "job.json").write_text(json.dumps(document(**{**small, **changes})))
    options = [str(folder / "job.json"), "--json", "--metrics", str(metrics)]
    answer = CliRunner().invoke(command, options, standalone_mode=False)
    assert answer.return_value == 0, answer.output
    head, *rows = metrics.read_text().splitlines()
    column = head.split(",").index("learning_rate")
    return [float(row.split(",")[column]) for row in rows], answer.stderr


def test_a_cosine_that_goes_on_longer_is_kept_or_rebuilt_and_said(tmp_path: Path) -> None:
    saves = {"dir": str(tmp_path / "saved"), "every": 4}
    cosine = {"decay": "cosine", "final": 0.2}
    first, _ = rates(tmp_path, steps=4, checkpoint=saves, lr=0.01, lr_schedule=cosine)
    resumed = {"steps": 6, "resume": find(str(tmp_path / "saved")).where}
    rebuilt, notices = rates(tmp_path, **resumed, lr=0.01, lr_schedule=cosine)
    assert rebuilt[0] > first[-1] == pytest.approx(0.002)
    assert "changed: optimizer.steps: 4 in the checkpoint, 6 now" in notices
    assert f"{first[-1]:.3g} in the checkpoint's last iteration, {rebuilt[0]:.3g} in the next" in notices
    assert "the schedule is rebuilt" in notices
    rates_kept, notices = rates(tmp_path, **resumed, lr=0.01, lr_schedule={**cosine, "on_resume": "keep"})
    assert rates_kept == pytest.approx([first[-1]] * 2)
    assert "changed: optimizer.steps" in notices
    assert "learning rate" not in notices  # it goes on where it was


def test_an_older_checkpoint_has_no_rate_to_keep(tmp_path: Path) -> None:
    where = saved(tmp_path).where
    assert find(where).manifest.job is None  # as in checkpoints of older versions
    again = job(resume=where, lr_schedule={"on_resume": "keep"}, steps=9)
    with pytest.raises(InputError, match=r"on_resume.*did not store its learning rate: use rebuild"):
        with_kept_rate(again, lambda: "aa")


def test_what_an_older_version_did_not_know_had_its_default() -> None:
    """A checkpoint of before AdamW had groups and betas: only what differs from the defaults is said."""
    sections = saved_sections(job())
    for name in ("weight_decay_on", "betas", "eps"):
        del sections["optimizer"][name]
    manifest = SimpleNamespace(job=sections, step=1)
    older: Any = SimpleNamespace(manifest=manifest, where="/c/step-1")
    assert changes(job(), older) == []
    notices = changes(job(weight_decay_on="matrices", betas=[0.9, 0.95]), older)
    assert notices == [
        "optimizer.betas: [0.9, 0.999] in the checkpoint, [0.9, 0.95] now",
        "optimizer.weight_decay_on: all in the checkpoint, matrices now",
    ]
