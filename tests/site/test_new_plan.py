"""The form of a new plan: a model first, its data, and GPUs of the device that a launch trains on."""

from typing import Any

import pytest
from django.urls import reverse

from engine.errors import InputError
from tests.site.test_folds import folds, plan_form
from tests.site.test_plan_launch_form import launch
from tests.site.world import World
from webapp.inventory.models import Node
from webapp.jobs.models import Run
from webapp.planning.compose import initial_of
from webapp.planning.document import train_document
from webapp.planning.models import Plan

CREATE = reverse("planning:plan-create")


def made(world: World, **values: Any) -> Plan:
    """The plan of a form that is sent as it is first shown, but for `values`."""
    form = plan_form(world, **values)
    assert form.is_valid(), form.errors
    answer = world.client("operator").post(CREATE, form.data)
    assert answer.status_code == 302, answer.context["form"].errors
    return Plan.objects.get(name=form.cleaned_data["name"])


def page_of(world: World, plan: Plan, who: str = "operator") -> Any:
    return world.client(who).get(reverse("planning:plan-detail", args=[plan.pk]))


def test_a_name_is_all_that_a_new_plan_asks_for(world: World) -> None:
    """Its times come from a model, and what it gives can be launched."""
    plan = made(world)
    assert plan.request["job"]["model"] == "gpt-a"
    assert not {"forward_ms", "zero"} & plan.request["job"].keys()
    assert plan.result["feasible"]
    page = page_of(world, plan)
    assert page.context["launch"]["ok"], page.context["launch"]
    assert plan.training is not None
    assert "data" not in plan.training


def test_times_are_entered_under_advanced(world: World) -> None:
    refused = plan_form(world, source="times", forward_ms="")
    assert folds(refused)["Advanced"]["open"]
    assert set(refused.errors) == {"forward_ms"}
    plan = made(world, source="times")
    assert plan.request["job"]["forward_ms"] == 20.0
    assert "model" not in plan.request["job"]


def test_a_plan_that_shares_optimizer_states_is_launched_so(world: World) -> None:
    plan = made(world, zero="1")
    assert plan.request["job"]["zero"] == 1
    assert initial_of(plan)["zero"] == 1
    page = page_of(world, plan)
    assert "shared by the replicas of a stage" in page.content.decode()
    assert page.context["launch"]["ok"], page.context["launch"]
    url = f"/plans/{plan.pk}/launch/{plan.result['best']}/"
    form = world.client("operator").get(url).context["form"]
    shown = {field.name: field.value() for field in form if field.value() is not None}
    answer = world.client("operator").post(url, shown)
    assert answer.status_code == 302, answer.context["form"].errors
    run = Run.objects.latest("pk")
    assert answer.url == f"/runs/{run.pk}/"
    assert run.job.document["cell"]["zero"] == 1


def test_stages_that_recompute_differently_cannot_be_launched(world: World) -> None:
    assert "even layers" in str(plan_form(world, recompute="auto").errors["recompute"])
    plan = made(world, recompute="auto", spread="even")
    assert plan.request["job"]["recompute"] == "auto"
    assert initial_of(plan)["recompute"] == "auto"
    option = plan.result["options"][plan.result["best"]]
    assert set(option["recompute"]) == {"none"}, "there is memory for all"
    page = page_of(world, plan)
    assert page.context["launch"]["ok"], page.context["launch"]
    assert "Recomputation" in page.content.decode()
    mixed = {**option, "recompute": ["full", *option["recompute"][1:]]}
    with pytest.raises(InputError, match=r"recompute: 'auto'.*in all stages or in none"):
        train_document(plan.request, mixed, plan.training)
    for flag, name in ((True, "full"), (False, "none")):
        plan.request["job"]["recompute"] = flag
        assert initial_of(plan)["recompute"] == name


def test_the_data_of_a_plan_is_what_its_launch_trains_on(world: World) -> None:
    plan = made(world, data="/data/books")
    assert plan.training is not None
    assert plan.training["data"] == "/data/books"
    assert initial_of(plan)["data"] == "/data/books"
    assert "/data/books" in page_of(world, plan, "viewer").content.decode()
    client, index = world.client("operator"), plan.result["best"]
    there = reverse("planning:plan-launch-form", args=[plan.pk, index])
    assert client.get(there).context["form"]["data"].value() == "/data/books"
    client.post(reverse("planning:plan-launch", args=[plan.pk]), {"option": index})
    run = Run.objects.get()
    assert run.job.document["data"]["files"] == "/data/books"
    clone = client.get(f"/runs/{run.pk}/clone/").context["form"]
    assert clone["data"].value() == "/data/books"


def test_a_launch_form_changes_the_data(world: World) -> None:
    launch(world, name="other text", data="/data/other")
    assert Run.objects.get(job__name="other text").document["data"]["files"] == "/data/other"
    launch(world, name="no text", data="")
    assert "data" not in Run.objects.get(job__name="no text").document


def test_data_is_a_path_that_all_nodes_have(world: World) -> None:
    form = plan_form(world, data="books")
    assert "begins with /" in str(form.errors["data"])
    assert "begins with /" in str(launch(world, data="books").context["form"].errors["data"])


def test_a_plan_begins_with_the_device_and_the_stages_that_suit(world: World) -> None:
    Node.objects.filter(pk__in=[node.pk for node in world.nodes[1:]]).delete()
    Node.objects.update(device="cpu")
    form = world.client("operator").get(CREATE).context["form"]
    assert form["device"].value() == "cpu"
    assert form["partitions"].value() == "4"
    assert not folds(form)["Advanced"]["open"]


def test_a_plan_counts_gpus_of_the_device_that_is_asked_for(world: World) -> None:
    Node.objects.filter(name="east-1").update(device="cuda")
    plan = made(world, device="emulated")
    assert [dc["gpus"] for dc in plan.request["datacenters"]] == [0, 4, 4]
    Plan.objects.filter(pk=plan.pk).delete()
    plan = made(world, device="cuda", partitions="2")
    assert [dc["gpus"] for dc in plan.request["datacenters"]] == [4, 0, 0]


def test_a_device_that_no_node_has_is_refused_at_its_field(world: World) -> None:
    form = plan_form(world, device="cuda")
    assert "They have: Emulated GPU." in str(form.errors["device"])
    assert folds(form)["Advanced"]["open"]
    assert plan_form(world, device="cuda", steps="", source="times").is_valid(), "nothing is to be launched"


def test_page_check_and_launch_say_which_nodes_must_join(world: World) -> None:
    plan = made(world)
    assert page_of(world, plan).context["to_join"] == []
    Node.objects.filter(name="east-1").update(acl_sha256="")
    world.hear(*Node.objects.exclude(name="east-1"))
    message = "0 of the 4 Emulated GPUs counted in east have joined; east-1 must join first"
    for who in ("viewer", "operator"):
        page = page_of(world, plan, who)
        assert page.context["to_join"] == [message]
        assert f"{message}. " in page.content.decode()
    page = page_of(world, plan)
    (check,) = [check for check in page.context["dry"]["checks"] if check["name"] == "GPUs in east"]
    assert "there are 0 in total, east-1 must join first" in check["text"]
    assert "east-1 must join first" in page.context["launch"]["reason"]
    index = plan.result["best"]
    form = world.client("operator").get(reverse("planning:plan-launch-form", args=[plan.pk, index]))
    assert "east-1 must join first" in str(form.context["form"].dry["checks"])


def test_a_node_of_another_device_does_not_stand_in(world: World) -> None:
    plan = made(world)
    Node.objects.filter(name="east-1").update(device="cuda")
    (message,) = page_of(world, plan).context["to_join"]
    assert message == "0 of the 4 Emulated GPUs counted in east have joined; 4 of another device do not count"


def test_a_run_that_continues_keeps_its_data(world: World) -> None:
    run = world.launch()
    Run.objects.filter(pk=run.pk).update(saved_step=4, saved_where="/c/step-000000004-ab")
    client, there = world.client("operator"), reverse("jobs:run-clone", args=[run.pk])
    shown = client.get(there).context["form"]
    sent = {field.name: field.value() for field in shown if field.value() is not None}
    refused = client.post(there, {**sent, "resume": "last", "data": "/data/other"}).context["form"]
    assert str(refused.errors["data"].as_text()) == (
        "* Leave this empty: the checkpoint was trained with that."
    )
