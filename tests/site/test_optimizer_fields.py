"""AdamW and the learning rate's schedule on a launch form: into the document, and errors at their fields."""

from typing import Any

import pytest

from engine.inputs import parse
from engine.job.changed import changed, fields_of
from engine.job.job import TrainJob
from tests.site.test_plan_launch_form import launch
from tests.site.world import World
from webapp.jobs.clone_form import CloneForm
from webapp.jobs.models import Run
from webapp.jobs.optimizer_fields import OPTIMIZER, optimizer_values

SCHEDULE = {"decay": "wsd", "warmup_steps": 4, "cooldown_steps": 10, "cooldown": "1-sqrt", "final": 25}
ADAMW = {"weight_decay": 0.1, "weight_decay_on": "all", "beta1": 0.8, "beta2": 0.95, "eps": 1e-6}


def test_what_is_asked_for_is_what_the_run_trains_with(world: World) -> None:
    launch(world, name="asked", **SCHEDULE, **ADAMW)
    run = Run.objects.get(job__name="asked")
    optimizer = parse(TrainJob, run.document).optimizer
    rates = [optimizer.lr_schedule.rate(1.0, step, 50) for step in range(50)]
    assert rates[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates[39] == 1.0
    assert rates[49] == 0.25
    assert rates[40] == pytest.approx(0.25 + 0.75 * (1 - 0.1**0.5)), "1 - the root of progress"
    assert (optimizer.betas, optimizer.eps) == ((0.8, 0.95), 1e-6)
    assert (optimizer.weight_decay, optimizer.weight_decay_on) == (0.1, "all")
    shown = {name: CloneForm(run=run)[name].value() for name in OPTIMIZER}
    assert shown == optimizer_values(parse(TrainJob, run.document)), "a clone begins with them"
    assert shown["final"] == 25


def test_what_is_left_as_it_was_changes_nothing(world: World) -> None:
    launch(world, name="same")
    assert fields_of(Run.objects.get(job__name="same").document) == fields_of(world.launch().document)


def test_numbers_that_are_left_empty_are_the_defaults(world: World) -> None:
    launch(world, name="asked", **SCHEDULE, **ADAMW)
    run = Run.objects.get(job__name="asked")
    shown = {field.name: field.value() for field in CloneForm(run=run) if field.value() is not None}
    names = ("warmup_steps", "final", "weight_decay", "beta1", "beta2", "eps")
    form = CloneForm({**shown, **dict.fromkeys(names, ""), "name": "next"}, run=run)
    assert form.is_valid(), form.errors
    optimizer = parse(TrainJob, form.document).optimizer
    fresh = type(optimizer)(steps=1)
    assert (optimizer.betas, optimizer.eps) == (fresh.betas, fresh.eps)
    assert (optimizer.weight_decay, optimizer.lr_schedule.final) == (fresh.weight_decay, 0.1)
    assert (optimizer.lr_schedule.warmup_steps, optimizer.lr_schedule.decay) == (0, "wsd")


def test_a_schedule_is_taken_back(world: World) -> None:
    launch(world, name="asked", **SCHEDULE)
    run = Run.objects.get(job__name="asked")
    shown = {field.name: field.value() for field in CloneForm(run=run) if field.value() is not None}
    changes = {"decay": "cosine", "cooldown_steps": "", "decay_steps": "30"}
    form = CloneForm({**shown, **changes, "name": "next"}, run=run)
    assert form.is_valid(), form.errors
    schedule = parse(TrainJob, form.document).optimizer.lr_schedule
    assert (schedule.decay, schedule.cooldown_steps, schedule.decay_steps) == ("cosine", None, 30)
    assert (schedule.warmup_steps, schedule.final) == (4, 0.25)


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"decay": "wsd"}, "cooldown_steps", "Required with decay wsd"),
        ({"decay": "cosine", "cooldown_steps": 5}, "cooldown_steps", "belongs to wsd"),
        ({"warmup_steps": 51}, "warmup_steps", "At most steps = 50"),
        (
            {"decay": "linear", "warmup_steps": 9, "decay_steps": 5},
            "decay_steps",
            "At least warmup_steps = 9",
        ),
        ({"decay": "wsd", "warmup_steps": 45, "cooldown_steps": 6}, "cooldown_steps", "At most 5"),
        ({"beta2": 1}, "beta2", "less than 1"),
        ({"beta1": -0.1}, "beta1", "greater than or equal to 0"),
        ({"eps": 0}, "eps", "greater than 0"),
        ({"weight_decay": 2}, "weight_decay", "less than or equal to 1"),
        ({"final": 101}, "final", "less than or equal to 100"),
    ],
)
def test_an_error_stands_at_its_field(
    world: World, changes: dict[str, Any], field: str, message: str
) -> None:
    form = launch(world, name="never", **changes).context["form"]
    assert set(form.errors) == {field}
    assert message in str(form.errors[field])


def test_a_clone_that_continues_keeps_what_it_asks_for(world: World) -> None:
    run = world.launch()
    run.saved_step, run.saved_where = 10, "/saved/1-1"
    run.save()
    job = run.job
    job.document = changed(job.document, {"optimizer.lr_schedule": {"decay": "cosine", "final": 0.2}})
    job.save()
    shown = {field.name: field.value() for field in CloneForm(run=run) if field.value() is not None}
    form = CloneForm({**shown, "name": "next", "resume": "last", "warmup_steps": "3"}, run=run)
    assert form.is_valid(), form.errors
    assert form.document["optimizer"]["lr_schedule"] == {
        "decay": "cosine",
        "final": 0.2,
        "warmup_steps": 3,
        "on_resume": "rebuild",
    }
