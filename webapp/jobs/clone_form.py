"""The form of a job like that of a run, which may continue from one of its checkpoints."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, NamedTuple, cast

from django import forms

from engine.job.changed import value_at
from engine.job.checkpoint.manifest import newest_of_run
from engine.job.checkpoint.resuming import rate_change, with_rate_of
from engine.job.job import TrainJob
from webapp.common.document_fields import document_field
from webapp.jobs.check import Check
from webapp.jobs.forms import JobForm
from webapp.jobs.models import CheckpointStatus, Job, Run
from webapp.jobs.optimizer_fields import SCHEDULE, with_optimizer
from webapp.planning.document import site_job

MOST_OFFERED = 50  # checkpoints of a run that a form lists


class Resumable(NamedTuple):
    """A checkpoint that a job can continue from: iterations done, and the value of `persistence.resume`."""

    step: int
    where: str


class CloneForm(JobForm):
    """A job like that of a run.

    checkpoint : which of the choices of `resume` is first chosen.
    lost_checkpoint : it is none of them, because it is gone, torn or of another run.
    """

    KEEPS_RULE = True
    resume = forms.ChoiceField(label="Continue from", required=False)
    on_resume = document_field(
        TrainJob,
        "optimizer.lr_schedule.on_resume",
        label="Learning rate when continuing",
        required=False,
        words={"rebuild": "By this form, over all its iterations", "keep": "As in the checkpoint's run"},
    )
    layout = [
        (title, note, [*names, "on_resume"] if title == "Checkpoints" else names)
        for title, note, names in JobForm.layout
    ]

    def __init__(
        self, data: Any = None, *, run: Run, checkpoint: str = "", initial: dict[str, Any] | None = None
    ) -> None:
        job, named = run.job, {"name": _free_name(run.job), "priority": run.priority, **(initial or {})}
        super().__init__(
            data,
            document=job.document,
            team=job.team,
            gpu_of_rank=job.gpu_of_rank,
            initial=named,
            planned=job.plan_copy.get("request"),
        )
        self.run = run
        self._offer_checkpoints()
        self.lost_checkpoint = bool(checkpoint) and checkpoint not in self._offered
        self.initial["resume"] = "" if self.lost_checkpoint else checkpoint
        self.initial["on_resume"] = value_at(job.document, "optimizer.lr_schedule", {}).get("on_resume")

    def _checkpoints(self, cleaned: dict[str, Any]) -> dict[str, Any]:
        chosen = self._offered.get(cleaned["resume"])
        values = super()._checkpoints(cleaned) | {"persistence.resume": chosen.where if chosen else None}
        if chosen:
            schedule = value_at(with_optimizer(self.old, cleaned), SCHEDULE, {})
            values[SCHEDULE] = {**schedule, "on_resume": cleaned["on_resume"] or "rebuild"}
        return values

    def _dry(self, document: dict[str, Any]) -> dict[str, Any]:
        """What the learning rate does is a check of its own; the run's document stands for the checkpoint."""
        dry = super()._dry(document)
        chosen = self._offered.get(self.cleaned_data.get("resume", "")) if self.is_bound else None
        if chosen:
            notice = self._rate_after(document, chosen.step)
            dry["checks"].append(asdict(Check(name="Learning rate", ok=True, text=notice)))
        return dry

    def _rate_after(self, document: dict[str, Any], step: int) -> str:
        """What the learning rate does after `step` iterations of the run."""
        job, before = site_job(document), site_job(self.run.document)
        saved = before.optimizer
        if before.persistence.resume and saved.lr_schedule.on_resume == "keep":
            # Only the checkpoint says which rate that is.
            as_before = job.optimizer.lr_schedule.on_resume == "keep"
            this_run = "keeps it" if as_before else "computes its own"
            return f"The checkpoint's run kept an older rate. This run {this_run}."
        if job.optimizer.lr_schedule.on_resume == "keep":
            job = with_rate_of(job, saved)
        return next(iter(rate_change(job, saved, step)), "The run continues with the checkpoint's schedule.")

    def clean(self) -> dict[str, Any]:
        """What a checkpoint is of must stay: a launch would only fail as it starts."""
        cleaned = super().clean()
        chosen = self._offered.get(cleaned.get("resume", ""))
        if chosen is None or self.errors:
            return cleaned
        if cleaned["steps"] <= chosen.step:
            self.add_error("steps", f"Enter more than {chosen.step:,}: the checkpoint has done that many.")
        if cleaned["seed"] != (seed := self.initial["seed"]):
            self.add_error("seed", f"Enter {seed}: the checkpoint was saved with that seed.")
        for name in ("data", "prepared", "tokenizer"):
            if name in self.fields and cleaned[name] != (path := self.initial[name] or ""):
                message = f"Enter {path}" if path else "Leave this empty"
                self.add_error(name, f"{message}: the checkpoint was trained with that.")
        if cleaned["dtype"] and cleaned["dtype"] != (dtype := self.initial["dtype"]):
            self.add_error("dtype", f"Choose {dtype}: the checkpoint was saved in that.")
        before, after = (
            each["microbatches"] * each["micro_batch"] * each.get("accumulation", 1)
            for each in (self.initial, cleaned)
        )
        if before != after:
            message = f"Microbatches × microbatch size is {after:,}, but {before:,} in the checkpoint."
            self.add_error("microbatches", message)
        return cleaned

    def _offer_checkpoints(self) -> None:
        """The choices of `resume`: the run's last checkpoint, and each of the latest that can be used."""
        run, resume = self.run, cast(forms.ChoiceField, self.fields["resume"])
        self._offered: dict[str, Resumable] = {}
        if run.saved_step is not None:
            self._offered["last"] = Resumable(step=run.saved_step, where=newest_of_run(run.saved_where))
        saved = run.checkpoints.filter(status=CheckpointStatus.SAVED).order_by("-step", "-pk")
        for row in saved[:MOST_OFFERED]:
            self._offered[str(row.pk)] = Resumable(step=row.step, where=row.where)
        resume.choices = [("", "The first iteration"), *self._words()]
        resume.disabled = not self._offered
        if not self._offered:
            resume.help_text = "The run has saved no checkpoint."

    def _words(self) -> Iterator[tuple[str, str]]:
        for key, one in self._offered.items():
            last = "Its last checkpoint, after" if key == "last" else "The checkpoint after"
            yield key, f"{last} iteration {one.step:,}"


def _free_name(job: Job) -> str:
    """The job's name with the next number that the team has not used."""
    stem = job.name.rpartition(" v")[0] if job.name.rpartition(" v")[2].isdecimal() else job.name
    taken = set(Job.objects.filter(team=job.team, name__startswith=stem[:70]).values_list("name", flat=True))
    number = 2
    while f"{stem[:70]} v{number}" in taken:
        number += 1
    return f"{stem[:70]} v{number}"
