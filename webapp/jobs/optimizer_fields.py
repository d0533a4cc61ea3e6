"""Fields of AdamW and of the learning rate's schedule, for forms that launch a run."""

from typing import Any

from django import forms

from engine.inputs import parse
from engine.job.changed import changed, value_at
from engine.job.job import TrainJob
from engine.job.sections.optimizer import OptimizerSection
from webapp.planning.data_fields import of_job

SCHEDULE = "optimizer.lr_schedule"
# Of each field of the schedule, its name there.
OF_SCHEDULE = ("decay", "warmup_steps", "final", "decay_steps", "cooldown_steps", "cooldown")
PLAIN = ("weight_decay", "weight_decay_on", "eps")  # of the section itself
BETAS = ("beta1", "beta2")
OPTIMIZER = (*OF_SCHEDULE, "weight_decay", "weight_decay_on", *BETAS, "eps")


class OptimizerFields(forms.Form):
    """How the learning rate goes over the iterations, and what else AdamW asks for."""

    decay = of_job(
        f"{SCHEDULE}.decay",
        label="Decay of the learning rate",
        words={
            "constant": "Constant",
            "cosine": "Cosine",
            "linear": "Linear",
            "wsd": "WSD: constant, down at the end",
        },
        required=False,
        help_text="After the warm-up.",
    )
    warmup_steps = of_job(
        f"{SCHEDULE}.warmup_steps",
        label="Warm-up, iterations",
        required=False,
        help_text="Iterations in which the learning rate rises from near 0. Leave empty for {default}.",
    )
    final = of_job(
        f"{SCHEDULE}.final",
        scale=100,
        label="Learning rate at the end, %",
        required=False,
        help_text="Of the learning rate, where it decays. Leave empty for 10 %.",
    )
    decay_steps = of_job(
        f"{SCHEDULE}.decay_steps",
        label="End of the decay, iterations",
        help_text="The learning rate stays there. Leave empty for the last iteration.",
    )
    cooldown_steps = of_job(
        f"{SCHEDULE}.cooldown_steps",
        label="Cool-down of WSD, iterations",
        help_text="The last iterations, in which the learning rate decays. Leave empty for the other decays.",
    )
    cooldown = of_job(
        f"{SCHEDULE}.cooldown",
        label="Shape of the cool-down",
        words={"linear": "Linear", "cosine": "Cosine", "1-sqrt": "1 − √progress"},
        required=False,
    )
    weight_decay = of_job(
        "optimizer.weight_decay", label="Weight decay", required=False, help_text="Leave empty for {default}."
    )
    weight_decay_on = of_job(
        "optimizer.weight_decay_on",
        label="Weight decay applies to",
        words={
            "all": "All parameters",
            "matrices": "All but norms and biases",
            "matrices_without_embedding": "All but norms, biases and the embedding",
        },
        required=False,
    )
    beta1 = of_job(
        "optimizer.betas.0", label="β₁ of AdamW", required=False, help_text="Leave empty for {default}."
    )
    beta2 = of_job(
        "optimizer.betas.1", label="β₂ of AdamW", required=False, help_text="Leave empty for {default}."
    )
    eps = of_job("optimizer.eps", label="ε of AdamW", required=False, help_text="Leave empty for {default}.")


def optimizer_values(job: TrainJob) -> dict[str, Any]:
    """The values of the fields for a job."""
    return _values(job.optimizer)


def _values(section: OptimizerSection) -> dict[str, Any]:
    values = {name: getattr(section.lr_schedule, name) for name in OF_SCHEDULE}
    values |= {name: getattr(section, name) for name in PLAIN}
    percent = round(100 * section.lr_schedule.final, 6)
    values["final"] = int(percent) if percent == int(percent) else percent
    return values | dict(zip(BETAS, section.betas, strict=True))


DEFAULTS = _values(OptimizerSection(steps=1))


def with_optimizer(document: dict[str, Any], cleaned: dict[str, Any]) -> dict[str, Any]:
    """The document of a job with what the fields of a valid form change.

    A number that is left empty is the default of the document; a choice that is not sent stays as it is.
    """
    first = optimizer_values(parse(TrainJob, document))
    values = {name: cleaned[name] for name in OPTIMIZER if cleaned[name] != ""}
    values = {name: DEFAULTS[name] if value is None else value for name, value in values.items()}
    new = {name: value for name, value in values.items() if value != first[name]}
    schedule = {
        **value_at(document, SCHEDULE, {}),
        **{name: new[name] for name in OF_SCHEDULE if name in new},
    }
    if "final" in new:
        schedule["final"] = new["final"] / 100
    parts: dict[str, Any] = {f"optimizer.{name}": new[name] for name in PLAIN if name in new}
    parts[SCHEDULE] = {name: value for name, value in schedule.items() if value is not None} or None
    if new.keys() & set(BETAS):
        parts["optimizer.betas"] = [values[name] for name in BETAS]
    return changed(document, parts)
