"""Trackers of a job at the forms and checks of the site."""

import pytest

from engine.job.changed import changed, value_at
from tests.site.world import World, make_world
from webapp.jobs.clone_form import CloneForm
from webapp.jobs.dry import dry_run_document

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    return make_world()


def test_a_form_shows_adds_and_removes_trackers(world: World) -> None:
    run = world.launch()
    run.job.document = changed(run.job.document, {"tracking": {"mlflow": "/data/mlflow"}})
    run.job.save()
    shown = {field.name: field.value() for field in CloneForm(run=run) if field.value() is not None}
    assert shown["tracking_mlflow"] == "/data/mlflow"
    form = CloneForm({**shown, "name": "a", "tracking_wandb": "/data/wandb"}, run=run)
    assert form.is_valid(), form.errors
    assert value_at(form.document, "tracking") == {"mlflow": "/data/mlflow", "wandb": "/data/wandb"}
    form = CloneForm({**shown, "name": "b", "tracking_mlflow": ""}, run=run)
    assert form.is_valid(), form.errors
    assert "tracking" not in form.document


def test_a_folder_that_a_node_does_not_open_is_said_before_a_launch(world: World) -> None:
    run = world.launch()
    for node in world.nodes:
        node.seen_hardware = {"files": {"roots": ["/data"], "schemes": []}}
        node.save()
    document = changed(run.job.document, {"tracking": {"tensorboard": "/elsewhere"}})
    checks = dry_run_document(document, world.team)["checks"]
    texts = [check["text"] for check in checks if check["name"].startswith("Files in")]
    assert texts
    assert all("tracking.tensorboard" in text for text in texts)
