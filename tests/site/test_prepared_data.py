"""A job on prepared data at the forms and checks of the site."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.inputs import parse
from engine.job.changed import changed, value_at
from engine.job.job import TrainJob
from engine.job.planned import schedule_of
from tests.site.test_folds import plan_form
from tests.site.test_new_plan import made
from tests.site.world import World, make_world
from webapp.jobs.clone_form import CloneForm
from webapp.jobs.dry import dry_run_document
from webapp.jobs.models import Run
from webapp.planning.compose import initial_of
from webapp.planning.document import train_document
from webapp.planning.models import Plan

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
    assert (shown["prepared"], shown["validation_every"]) == ("/data/train", 2)
    assert "data" not in shown
    for folder in ("/data/train", "/data/more"):
        form = CloneForm({**shown, "name": "more", "prepared": folder}, run=run)
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
    texts = [check["text"] for check in checks if check["name"].startswith("Files in")]
    assert texts
    assert all("data.validation.prepared" in text for text in texts)


CONFIG = (Path(__file__).parent.parent / "configs" / "llama-3-8b.json").read_text()
CONFIGURED = {"model": "config", "config": CONFIG}


def launched(world: World, plan: Plan, **changes: Any) -> Any:
    """The answer to the launch form of a plan, sent as it is first shown but for `changes`."""
    client, address = world.client("operator"), f"/plans/{plan.pk}/launch/{plan.result['best']}/"
    form = client.get(address).context["form"]
    shown = {field.name: field.value() for field in form if field.value() is not None}
    return client.post(address, {**shown, **changes})


def test_a_plan_names_data_tokenizer_and_weights_of_its_launches(world: World) -> None:
    files = {"data": "/data/books", "tokenizer": "/m/tokenizer.json", "init": "/m"}
    plan = made(world, **CONFIGURED, **files)
    assert {name: plan.training[name] for name in files} == files
    document = train_document(plan.request, plan.best, plan.training)
    assert document["data"] == {"files": "/data/books"}
    config = {"config": json.loads(CONFIG), "seq": 8192}
    assert document["model"] == {**config, "tokenizer": "/m/tokenizer.json", "init": "/m"}
    again = initial_of(plan)
    assert {name: again[name] for name in files} == files
    assert launched(world, plan).status_code == 302
    run = Run.objects.get()
    assert run.document["model"] == document["model"]
    text = world.client("operator").get(f"/plans/{plan.pk}/").content.decode()
    assert "Text: /data/books. Tokenizer: /m/tokenizer.json. Weights begin as in /m." in text


def test_a_plan_names_a_prepared_folder_even_where_a_data_centre_is_called_like_it(world: World) -> None:
    east = world.dcs[0]
    east.name = "prepared"
    east.save()
    plan = made(world, prepared="/data/chats", vocab="300", trains="small")
    document = train_document(plan.request, plan.best, plan.training)
    assert document["data"] == {"prepared": "/data/chats"}
    assert document["model"]["vocab"] == 300
    assert initial_of(plan)["vocab"] == 300
    sent = launched(world, plan, validation_every="5", validation_prepared="/data/held-out")
    assert sent.status_code == 302, sent.context["form"].errors
    held_out = {"every": 5, "prepared": "/data/held-out"}
    assert Run.objects.get().document["data"] == {"prepared": "/data/chats", "validation": held_out}


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"init": "/m"}, "init", "only a model from a config.json can begin with given weights"),
        ({"init": "weights"}, "init", "begins with /"),
        ({"tokenizer": "/m/tokenizer.json"}, "tokenizer", "without one a token is a byte"),
        ({**CONFIGURED, "trains": "small", "init": "/m"}, "init", "only a model from a config.json"),
        ({"trains": "small", "vocab": "12"}, "vocab", "greater than or equal to 256"),
    ],
)
def test_what_a_model_cannot_read_stands_at_its_field(
    world: World, changes: dict[str, Any], field: str, message: str
) -> None:
    form = plan_form(world, **changes)
    assert set(form.errors) == {field}, form.errors
    assert message in str(form.errors[field])


@pytest.mark.parametrize(
    ("changes", "field", "message"),
    [
        ({"data": "/data/books", "prepared": "/data/chats"}, "data", "Must be left out with data.prepared"),
        ({"prepared": "chats"}, "prepared", "begins with /"),
        ({"prepared": "/c", "validation_every": "5"}, "validation_prepared", "Required with data.prepared"),
        ({"validation_prepared": "/data/held-out"}, "validation_every", "Enter the validation interval"),
        ({"validation_prepared": "/h", "validation_every": "5"}, "validation_prepared", "Must be left out"),
    ],
)
def test_what_data_does_not_go_together_stands_at_its_field(
    world: World, changes: dict[str, str], field: str, message: str
) -> None:
    form = launched(world, world.plan, **changes).context["form"]
    assert set(form.errors) == {field}, form.errors
    assert message in str(form.errors[field])


def test_a_run_that_only_reads_other_files_keeps_its_schedule(world: World) -> None:
    assert launched(world, made(world, **CONFIGURED)).status_code == 302
    run = Run.objects.get()
    schedule = str(schedule_of(parse(TrainJob, run.document)))
    run.job.document = changed(run.job.document, {"strategy.schedule": schedule})
    shown = {field.name: field.value() for field in CloneForm(run=run) if field.value() is not None}
    assert "vocab" not in CloneForm(run=run).fields, "the config has it"
    for changes, stays in (({"init": "/m", "prepared": "/data/more"}, True), ({"micro_batch": "2"}, False)):
        form = CloneForm({**shown, "name": "next", **changes}, run=run)
        assert form.is_valid(), form.errors
        assert ("schedule" in form.document["strategy"]) == stays
