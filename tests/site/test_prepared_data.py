"""A job on prepared data at the forms and checks of the site."""

import pytest

from engine.job.changed import changed, value_at
from tests.site.world import World, make_world
from webapp.jobs.dry import dry_run_document
from webapp.jobs.forms import CloneForm
from webapp.jobs.models import Run

pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> World:
    return make_world()


def prepared_run(world: World) -> Run:
    """A run on a prepared folder that validates on another one."""
    run = world.launch()
    held_out = {"every": 2, "prepared": "/data/held-out"}
    values = {"data.files": None, "data.prepared": "/data/train", "data.validation": held_out}
    job = run.job
    job.document = changed(job.document, values)
    job.save()
    return run


def test_a_clone_keeps_or_changes_the_folder(world: World) -> None:
    run = prepared_run(world)
    shown = {field.name: field.value() for field in CloneForm(run=run) if field.value() is not None}
    assert (shown["data"], shown["validation_every"]) == ("/data/train", 2)
    for folder in ("/data/train", "/data/more"):
        form = CloneForm({**shown, "name": "more", "data": folder}, run=run)
        assert form.is_valid(), form.errors
        assert value_at(form.document, "data.prepared") == folder
        assert value_at(form.document, "data.files") is None
        assert form.document["data"]["validation"]["prepared"] == "/data/held-out"


def test_folders_are_checked_against_what_nodes_open(world: World) -> None:
    run = prepared_run(world)
    for node in world.nodes:
        node.seen_hardware = {"files": {"roots": ["/data/train"], "schemes": []}}
        node.save()
    checks = dry_run_document(run.document, world.team)["checks"]
    said = [check["text"] for check in checks if check["name"].startswith("Files in")]
    assert said
    assert all("data.validation.prepared" in text for text in said)
