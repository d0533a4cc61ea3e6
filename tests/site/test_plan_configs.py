"""A plan's model as a config.json: pasted or uploaded, shown for what it is, refused at its field."""

import json
from pathlib import Path
from typing import Any

from django.core.files.uploadedfile import SimpleUploadedFile
from django.urls import reverse

from tests.site.test_folds import plan_form
from tests.site.test_new_plan import CREATE, made, page_of
from tests.site.world import World
from webapp.jobs.models import Run
from webapp.planning.compose import initial_of
from webapp.planning.models import Plan

CONFIG = (Path(__file__).parent.parent / "configs" / "llama-3.2-1b.json").read_text()
CHOSEN: dict[str, Any] = {"model": "config", "config": CONFIG, "model_seq": "2048"}


def figures(world: World, **values: str) -> str:
    """The part of the page that says what a model is."""
    answer = world.client("operator").post(reverse("planning:plan-model"), values)
    assert answer.status_code == 200
    return answer.content.decode()


def test_a_config_becomes_the_model_of_a_plan(world: World) -> None:
    plan = made(world, **CHOSEN)
    assert plan.request["job"]["model"] == {**json.loads(CONFIG), "seq": 2048}
    assert plan.result["feasible"]
    page = page_of(world, plan, "viewer").content.decode()
    assert "1,235,814,400" in page
    again = initial_of(plan)
    assert (again["model"], again["model_seq"]) == ("config", 2048)
    assert json.loads(again["config"]) == json.loads(CONFIG)


def test_an_uploaded_config_replaces_the_text(world: World) -> None:
    form = plan_form(world, model="config", config="no config", model_seq="2048")
    data = {**form.data, "config_file": SimpleUploadedFile("config.json", CONFIG.encode())}
    answer = world.client("operator").post(CREATE, data)
    assert answer.status_code == 302, answer.context["form"].errors
    assert Plan.objects.get(name="new").request["job"]["model"]["hidden_size"] == 2048


def test_what_is_wrong_with_a_config_stands_at_its_field(world: World) -> None:
    def refused(text: str) -> str:
        form = plan_form(world, model="config", config=text)
        assert set(form.errors) == {"config"}, form.errors
        return str(form.errors["config"])

    assert "choose a file, or paste its text" in refused("")
    assert "must be an object" in refused("[1]")
    assert "did you mean" in refused('{"model_type": "lama"}')
    assert "hidden_size" in refused(CONFIG.replace("2048", '"wide"'))
    assert "experts" in refused(CONFIG.replace('"head_dim"', '"num_experts": 8, "head_dim"'))
    big = {"config_file": SimpleUploadedFile("config.json", b" " * 150_000)}
    answer = world.client("operator").post(CREATE, {**plan_form(world, model="config").data, **big})
    assert "at most 131,072" in str(answer.context["form"].errors["config_file"])


def test_the_form_says_what_a_model_is(world: World) -> None:
    assert "8,030,261,248" in figures(world, model="llama-3-8b")
    text = figures(world, model="config", config=CONFIG)
    assert "1,235,814,400" in text
    assert "131,072 tokens" in text
    assert "attention_bias" in text, "what the config leaves out"
    assert "2,048 tokens" in figures(world, **CHOSEN)
    assert "did you mean" in figures(world, model="config", config='{"model_type": "lama"}')
    assert "<dl" not in figures(world, model="nothing")


def test_the_form_says_what_a_gpu_of_the_layout_holds(world: World) -> None:
    layout = {"partitions": "4, 8", "tp": "2", "model_micro_batch": "1"}
    text = figures(world, model="llama-3-8b", **layout)
    assert "in the fullest of 4 stages, TP 2, with one microbatch of 1 sequence" in text
    plan = made(world, model="llama-3-8b", partitions="4", microbatches="1", model_micro_batch="1")
    best = plan.result["options"][plan.result["best"]]
    needed = max(one["state_bytes"] + one["activation_bytes"] for one in best["memory_per_stage"])
    assert "6 layers of" in figures(world, model="gpt-a", **{**layout, "partitions": "6"})
    alone = figures(world, model="llama-3-8b", **{**layout, "tp": "1"})
    assert f"{needed / 1e9:.1f} GB in the fullest of 4 stages, with" in alone
    for wrong in ({"partitions": "many"}, {"partitions": "33"}, {"tp": "3"}, {"tp": ""}):
        assert "Memory a GPU" not in figures(world, model="llama-3-8b", **{**layout, **wrong}), wrong


LONG = {**CHOSEN, "model_seq": "8192"}  # its stages take the 5 ms of an emulated op


def test_a_config_is_launched_as_the_model_that_it_is(world: World) -> None:
    """Rotary positions, tied embedding and all: a shape of ours would be another model."""
    plan = made(world, **LONG)
    tied = page_of(world, plan).context["launch"]
    assert "share the embedding, whose gradients they sum, but no link joins them" in tied["reason"]
    plan = made(world, **LONG, name="two", datacenters=[dc.pk for dc in world.dcs[:2]])
    launch = page_of(world, plan).context["launch"]
    assert launch["ok"], launch
    assert launch["trains"] == "the planned model of 1.24 billion parameters"
    sent = world.client("operator").post(f"/plans/{plan.pk}/launch/", {"option": plan.result["best"]})
    assert sent.status_code == 302
    model = Run.objects.get().job.document["model"]
    assert model == {"config": json.loads(CONFIG), "seq": 8192}
    small = made(world, **LONG, name="small", trains="small")
    assert page_of(world, small).context["launch"]["trains"].startswith("a stand-in of ")


def test_a_model_with_experts_is_launched_as_a_stand_in_alone(world: World) -> None:
    whole = json.loads((Path(__file__).parent.parent / "configs" / "mixtral-8x7b.json").read_text())
    config = json.dumps({**whole, "num_hidden_layers": 6})  # which fits
    plan = made(world, model="config", config=config, model_seq="8192")
    launch = page_of(world, plan).context["launch"]
    assert not launch["ok"]
    assert "models with experts are not trained: train a stand-in with its times" in launch["reason"]
    small = made(world, model="config", config=config, model_seq="8192", name="small", trains="small")
    assert page_of(world, small).context["launch"]["ok"]
