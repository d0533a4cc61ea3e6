"""What a run has saved is offered again: to resume, to clone from, and when it moves."""

from typing import Any

import pytest

from engine.errors import InputError
from engine.job.events.event import from_dict
from tests.site.world import World, make_world
from webapp.jobs import services
from webapp.jobs.models import Run

pytestmark = pytest.mark.django_db

SAVED = {
    "kind": "checkpoint",
    "rank": 0,
    "step": 4,
    "state": "saved",
    "where": "/c/step-000000004-ab",
    "t": 1.79e9,
}


@pytest.fixture
def world() -> World:
    return make_world()


def saved_run(world: World) -> Run:
    run = world.launch()
    assert services.record_checkpoint(run, from_dict(SAVED))
    return services.fail_run(run, "Broken.")


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
    clone(world, run, name="lower", lr=1e-5, checkpoint_dir="/c", checkpoint_every=5, resume="on")
    made = Run.objects.get(job__name="lower").document
    saves = {"dir": "/c", "every": 5}
    assert made["persistence"] == {"checkpoint": saves, "resume": "/c/step-*-ab"}
    assert made["optimizer"]["lr"] == 1e-5
    refused = clone(world, run, name="never", checkpoint_dir="/c", checkpoint_every="")
    assert refused.status_code == 422
    assert "checkpoint interval in iterations" in refused.content.decode()
