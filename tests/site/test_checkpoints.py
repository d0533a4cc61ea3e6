"""What a run has saved is offered again: to resume, to clone from, and when it moves."""

from typing import Any

import pytest

from engine.errors import InputError
from engine.job.changed import changed
from engine.job.events.event import from_dict
from tests.events import T0
from tests.site.world import World, make_world
from webapp.jobs import services
from webapp.jobs.clone_form import CloneForm
from webapp.jobs.models import CheckpointStatus, Run, RunCheckpoint

pytestmark = pytest.mark.django_db

SAVED = {
    "kind": "checkpoint",
    "rank": 0,
    "step": 4,
    "state": "saved",
    "where": "/c/step-000000004-ab",
    "t": T0,
}


@pytest.fixture
def world() -> World:
    return make_world()


def saved_run(world: World) -> Run:
    run = world.launch()
    assert services.record_checkpoint(run, from_dict(SAVED))
    return services.fail_run(run, "Broken.")


def saved(step: int, **fields: Any) -> Any:
    """The event of a checkpoint after `step` iterations."""
    where = f"/c/step-{step:09d}-ab"
    return from_dict({**SAVED, "step": step, "where": where, "bytes": 5_000_000, "seconds": 1.25, **fields})


def states(run: Run) -> dict[int, str]:
    return dict(run.checkpoints.values_list("step", "status"))


def listed(world: World, run: Run, name: str = "operator") -> str:
    page = world.client(name).get(f"/runs/{run.pk}/checkpoints/")
    assert page.status_code == 200
    return page.content.decode()


def test_an_older_or_repeated_checkpoint_is_no_news(world: World) -> None:
    run = world.launch()
    assert services.record_checkpoint(run, from_dict(SAVED))
    assert not services.record_checkpoint(run, from_dict(SAVED))
    assert not services.record_checkpoint(run, from_dict({**SAVED, "step": 2, "where": "/c/other"}))
    run.refresh_from_db()
    assert (run.saved_step, run.saved_where) == (4, "/c/step-000000004-ab")


def test_one_that_failed_is_told_and_changes_nothing(world: World) -> None:
    run = world.launch()
    services.record_checkpoint(
        run, from_dict({**SAVED, "state": "failed", "detail": "No space left on device"})
    )
    run.refresh_from_db()
    assert run.saved_step is None
    assert "No space left on device" in run.events.latest("seq").text


def test_resume_goes_on_and_retry_begins_anew(world: World) -> None:
    run = saved_run(world)
    client = world.client("operator")
    assert "Resume after" in client.get(f"/runs/{run.pk}/").content.decode()
    client.post(f"/runs/{run.pk}/retry/", {"resume": "1"})
    again = Run.objects.get(generation=2)
    assert (again.resumes_step, again.document["persistence"]["resume"]) == (4, "/c/step-*-ab"), (
        "it may have saved more since"
    )
    assert "persistence" not in again.job.document
    assert "Continues after iteration 4" in again.events.earliest("seq").text
    services.fail_run(again, "Broken before it saved.")
    client.post(f"/runs/{again.pk}/retry/", {"resume": "1"})
    assert Run.objects.get(generation=3).document["persistence"]["resume"] == "/c/step-*-ab"
    services.fail_run(Run.objects.get(generation=3), "Broken.")
    client.post(f"/runs/{again.pk}/retry/")
    assert "persistence" not in Run.objects.get(generation=4).document


def test_what_saved_nothing_cannot_be_resumed(world: World) -> None:
    run = services.fail_run(world.launch(), "Broken.")
    with pytest.raises(InputError, match="no checkpoint"):
        services.retry_run(world.users["operator"], run, resume=True)


def clone(world: World, run: Run, **changes: Any) -> Any:
    client = world.client("operator")
    form = client.get(f"/runs/{run.pk}/clone/").context["form"]
    values = {field.name: field.value() for field in form if field.value() is not None}
    return client.post(f"/runs/{run.pk}/clone/", {**values, **changes})


def test_clone_goes_on_with_other_values(world: World) -> None:
    run = saved_run(world)
    clone(world, run, name="lower", lr=1e-5, checkpoint_dir="/c", checkpoint_every=5, resume="last")
    document = Run.objects.get(job__name="lower").document
    saves = {"dir": "/c", "every": 5}
    assert document["persistence"] == {"checkpoint": saves, "resume": "/c/step-*-ab"}
    assert document["optimizer"]["lr"] == 1e-5
    refused = clone(world, run, name="never", checkpoint_dir="/c", checkpoint_every="")
    assert refused.status_code == 422
    assert "checkpoint interval in iterations" in refused.content.decode()


def test_a_run_lists_its_checkpoints_and_what_became_of_them(world: World) -> None:
    run = world.launch()
    services.record_checkpoint(run, saved(10))
    services.record_checkpoint(run, saved(20, removed=["/c/step-000000010-ab", "/c/of-nobody"]))
    services.record_checkpoint(run, saved(25, state="failed", detail="No space left on device"))
    services.record_checkpoint(run, saved(30))
    run.job.document["persistence"] = {"checkpoint": {"dir": "/c", "every": 10}}
    run.job.save()
    assert states(run) == {10: "removed", 20: "saved", 25: "failed", 30: "saved"}
    text = listed(world, run)
    for part in ("/c/step-000000030-ab", "5 MB", "1.2", "Not saved", "No space left on device", "Removed"):
        assert part in text, part
    assert text.count(">Interval<") == 3
    assert text.count(">End of the run<") == 1
    offered = [row.pk for row in run.checkpoints.filter(status=CheckpointStatus.SAVED)]
    assert all(f"/runs/{run.pk}/clone/?checkpoint={pk}" in text for pk in offered)
    assert text.count("Resume from the checkpoint") == 2
    assert "?checkpoint=" not in listed(world, run, "viewer")


def test_a_script_reads_the_same_as_json(world: World) -> None:
    run = world.launch()
    services.record_checkpoint(run, saved(10))
    services.record_checkpoint(run, saved(20, state="failed", detail="full", bytes=None))
    answer = world.client("viewer").get(f"/runs/{run.pk}/checkpoints.json").json()["checkpoints"]
    assert [(one["step"], one["state"], one["bytes"]) for one in answer] == [
        (20, "failed", None),
        (10, "saved", 5_000_000),
    ]
    assert answer[1] | {"where": "/c/step-000000010-ab", "seconds": 1.25, "t": SAVED["t"]} == answer[1]


def test_events_that_come_again_make_no_second_row_or_mark(world: World) -> None:
    run = world.launch()
    marks = run.events.count()
    failed = saved(20, state="failed", detail="No space left on device")
    torn = saved(10, state="torn", detail="is torn: layer-00001.safetensors is missing")
    for event in (saved(10), saved(10), failed, failed, torn, torn):
        services.record_checkpoint(run, event)
    assert states(run) == {10: "torn", 20: "failed"}
    assert run.events.count() == marks + 2
    assert run.events.latest("seq").text == (
        "Passed over the torn checkpoint after iteration 10: layer-00001.safetensors is missing"
    )


def test_what_a_run_says_of_other_runs_checkpoints_reaches_its_team_alone(world: World) -> None:
    first, second, foreign = (world.launch() for _ in range(3))
    others = world.users["stranger"].memberships.get().team
    type(foreign.job).objects.filter(pk=foreign.job_id).update(team=others)
    for run in (first, foreign):
        services.record_checkpoint(run, saved(10))
    services.record_checkpoint(second, saved(20, removed=["/c/step-000000010-ab"]))
    assert (states(first), states(foreign)) == ({10: "removed"}, {10: "saved"})


def test_resume_from_leads_to_the_launch_form_with_that_checkpoint(world: World) -> None:
    run = saved_run(world)
    services.record_checkpoint(run, saved(8))
    older = RunCheckpoint.objects.get(run=run, step=4)
    client, url = world.client("operator"), f"/runs/{run.pk}/clone/?checkpoint={older.pk}"
    form = client.get(url).context["form"]
    assert form["resume"].value() == str(older.pk)
    values = {field.name: field.value() for field in form if field.value() is not None}
    assert client.post(url, {**values, "name": "again"}).status_code == 302
    document = Run.objects.get(job__name="again").document
    assert document["persistence"]["resume"] == older.where
    for name, value in (("steps", 4), ("seed", 9), ("microbatches", 8)):
        refused = client.post(url, {**values, "name": "never", name: value})
        assert refused.status_code == 422
        assert list(refused.context["form"].errors) == [name]


@pytest.mark.parametrize("checkpoint", ["torn", "0", "x", "9" * 40])
def test_a_checkpoint_that_cannot_be_used_is_not_chosen(world: World, checkpoint: str) -> None:
    run = saved_run(world)
    RunCheckpoint.objects.filter(run=run).update(status=CheckpointStatus.TORN)
    number = run.checkpoints.get().pk if checkpoint == "torn" else checkpoint
    page = world.client("operator").get(f"/runs/{run.pk}/clone/?checkpoint={number}")
    assert page.context["form"]["resume"].value() == ""
    assert "That checkpoint cannot be used" in page.content.decode()


def test_the_page_says_how_to_have_checkpoints_and_when_the_first_is_due(world: World) -> None:
    run = world.launch()
    assert "This run saves no checkpoints. Clone it" in listed(world, run)
    assert f"/runs/{run.pk}/clone/" not in listed(world, run, "viewer")
    run.job.document["persistence"] = {"checkpoint": {"dir": "/c", "every": 10}}
    run.job.save()
    assert "the first is due after iteration 10" in listed(world, run)
    services.fail_run(run, "Broken.")
    assert "ended before its first checkpoint" in listed(world, run)


REBUILT = (
    "0.0065 in the checkpoint's last iteration, 0.00994 in the next (0.0045 by the checkpoint's schedule),"
    " 0.001 in the last of this run; the schedule is rebuilt"
)


@pytest.mark.parametrize(
    ("choice", "steps", "message"),
    [
        ("rebuild", 80, REBUILT),
        ("keep", 80, "The run continues with the checkpoint's schedule."),
        ("keep", 6, "the schedule is kept"),
    ],
)
def test_the_learning_rate_is_kept_or_rebuilt_and_said(
    world: World, choice: str, steps: int, message: str
) -> None:
    run = saved_run(world)
    schedule = {"decay": "cosine", "final": 0.1}
    run.job.document = changed(
        run.job.document, {"optimizer.lr": 0.01, "optimizer.lr_schedule": schedule, "optimizer.steps": 8}
    )
    run.job.save()
    form = continued(run, steps=steps, on_resume=choice)
    assert form.document["optimizer"]["lr_schedule"] == {**schedule, "on_resume": choice}
    assert message in rate_check(form)


def test_a_clone_of_a_run_that_kept_its_rate_keeps_it_too(world: World) -> None:
    run = saved_run(world)
    schedule = {"decay": "cosine", "on_resume": "keep"}
    run.job.document = changed(
        run.job.document, {"optimizer.lr_schedule": schedule, "persistence.resume": "/c/older"}
    )
    run.job.save()
    form = continued(run)
    assert form.document["optimizer"]["lr_schedule"] == schedule
    assert rate_check(form) == "The checkpoint's run kept an older rate. This run keeps it."


def continued(run: Run, **values: Any) -> CloneForm:
    """The valid form of a clone that goes on from the run's last checkpoint."""
    shown = {field.name: field.value() for field in CloneForm(run=run) if field.value() is not None}
    form = CloneForm({**shown, "name": "more", "resume": "last", **values}, run=run)
    assert form.is_valid(), form.errors
    return form


def rate_check(form: CloneForm) -> str:
    (text,) = (each["text"] for each in form.dry["checks"] if each["name"] == "Learning rate")
    return str(text)
