"""What a run that resumes changes against its checkpoint: fields of its document, and the learning rate."""

from collections.abc import Callable
from typing import Any

from engine.errors import InputError
from engine.inputs import parse
from engine.job.changed import fields_of
from engine.job.checkpoint.manifest import Checkpoint, resumed
from engine.job.job import TrainJob
from engine.job.losses import rate_of
from engine.job.sections.optimizer import OptimizerSection

SECTIONS = {"cell", "optimizer", "strategy"}
LONGEST_VALUE = 60  # characters of a field's value in a sentence


def saved_sections(job: TrainJob) -> dict[str, Any]:
    """The sections of a job that its checkpoints hold, without the text of a schedule."""
    return job.model_dump(
        mode="json", include=SECTIONS, exclude={"strategy": {"schedule"}}, exclude_none=True
    )


def with_kept_rate(job: TrainJob, fingerprint: Callable[[], str]) -> TrainJob:
    """The job with the learning rate and the schedule of its checkpoint, where it asks to keep them.

    fingerprint : of its text; asked for only where a checkpoint is looked for.

    Raises
    ------
    InputError
        The checkpoint is not one that the job can resume from, or does not say its learning rate.
    """
    if not job.persistence.resume or job.optimizer.lr_schedule.on_resume == "rebuild":
        return job
    checkpoint = resumed(job, fingerprint())
    if checkpoint is None:
        return job
    saved = _optimizer(checkpoint)
    if saved is None:
        allowed = (
            f"{checkpoint.where} was written by a version that did not store its learning rate: use rebuild"
        )
        raise InputError("optimizer.lr_schedule.on_resume", "keep", allowed)
    return with_rate_of(job, saved)


def with_rate_of(job: TrainJob, saved: OptimizerSection) -> TrainJob:
    """The job with the learning rate and the schedule of another; the decay ends where it would have."""
    ends = saved.lr_schedule.decay_steps or saved.steps
    schedule = saved.lr_schedule.model_copy(update={"decay_steps": ends, "on_resume": "keep"})
    return job.with_fields("optimizer", lr=saved.lr, lr_schedule=schedule)


def changes(job: TrainJob, checkpoint: Checkpoint) -> list[str]:
    """Sentences on what `job`, its rate kept already where it asks for that, changes against the checkpoint.

    Nothing for a checkpoint of a version that did not store the sections of its job.
    """
    manifest = checkpoint.manifest
    if manifest.job is None:
        return []
    saved = _optimizer(checkpoint)
    # What an older version did not know had its default.
    filled = {"optimizer": saved.model_dump(mode="json", exclude_none=True)} if saved else {}
    then, now = fields_of({**manifest.job, **filled}), fields_of(saved_sections(job))
    differ = [
        f"{path}: {_as_text(then.get(path))} in the checkpoint, {_as_text(now.get(path))} now"
        for path in sorted(then.keys() | now.keys())
        if then.get(path) != now.get(path) and path != "optimizer.lr_schedule"
    ]
    rates = rate_change(job, saved, manifest.step) if saved else []
    return [*differ, *(f"learning rate: {change}" for change in rates)]


def rate_change(job: TrainJob, saved: OptimizerSection, step: int) -> list[str]:
    """What the learning rate does where `job` goes on after `step` steps of a run with the section `saved`.

    A sentence; nothing where it goes on as that run would have.
    """
    indices = (max(step - 1, 0), step, saved.steps - 1)
    before, planned, their_last = (saved.lr_schedule.rate(saved.lr, index, saved.steps) for index in indices)
    now, last = rate_of(job, step), rate_of(job, job.optimizer.steps - 1)
    if now == planned and last == their_last:
        return []
    keeps = job.optimizer.lr_schedule.on_resume == "keep"
    return [
        f"{before:.3g} in the checkpoint's last iteration, {now:.3g} in the next"
        f" ({planned:.3g} by the checkpoint's schedule), {last:.3g} in the last of this run;"
        f" the schedule is {'kept' if keeps else 'rebuilt'}"
    ]


def _optimizer(checkpoint: Checkpoint) -> OptimizerSection | None:
    """The optimizer section that the checkpoint holds."""
    section = (checkpoint.manifest.job or {}).get("optimizer")
    if section is None:
        return None
    return parse(OptimizerSection, section, at=f"{checkpoint.where}: job.optimizer")


def _as_text(value: Any) -> str:
    text = "not given" if value is None else str(value)
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 1]}…"
