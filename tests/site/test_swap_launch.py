"""Launches of workers that swap: the form, what it refuses, its dry run, clones, and who may."""

from typing import Any

import pytest

from engine.inputs import parse
from engine.job.job import TrainJob
from tests.site.swap_runs import FORM, launched, placed, three_nodes, values
from tests.site.world import World
from webapp.accounts.models import AuditEntry
from webapp.inventory.models import Node
from webapp.jobs.models import RankState, Run
from webapp.jobs.reconcile import spec_of
from webapp.jobs.swap_document import spread


def errors_of(answer: Any) -> dict[str, list[str]]:
    assert answer.status_code == 422, answer.status_code
    return dict(answer.context["form"].errors)


def test_a_launch_has_what_the_form_says(world: World) -> None:
    three_nodes(world)
    run = launched(world, checkpoint_dir="/shared/swap", checkpoint_every=2, idempotency_key="once")
    job = parse(TrainJob, run.job.document)
    assert job.swap_strategy is not None
    assert job.swap_strategy.gpu.model_dump(exclude_none=True) == {
        "name": "a100-80g",
        "memory_bytes": pytest.approx(1_500_000),
        "host_to_device_gb_s": 0.04,
    }
    assert (job.cell.pipelines, job.cell.stages, job.cell.microbatches) == (3, 1, 4)
    assert [dc.model_dump(exclude_none=True) for dc in job.datacenters] == [{"name": "east", "gpus": 3}]
    assert (job.model.layers, job.device.kind, job.optimizer.steps) == (6, "cpu", 3)
    assert job.persistence.checkpoint is not None
    assert run.predicted == {}, "nothing is known of the times of a CPU"
    assert AuditEntry.objects.filter(verb="create", after__strategy="swap").exists()
    again = world.client("operator").post(
        "/runs/swap/",
        values(world, checkpoint_dir="/shared/swap", checkpoint_every=2, idempotency_key="once"),
    )
    assert again.headers["Location"] == f"/runs/{run.pk}/"


def test_emulated_workers_have_a_predicted_timeline(world: World) -> None:
    run = launched(world, device="emulated", steps=5)
    kinds = {code[0] for _, *codes in run.predicted["spans"] for code in codes}
    assert kinds == {"F", "B", "L", "G", "A", "O"}
    page = world.client("viewer").get(f"/runs/{run.pk}/").content.decode()
    assert "3 workers that swap, 4 mini-batches per step" in page
    assert "Compare schedules" not in page


def test_workers_are_spread_over_nodes(world: World) -> None:
    run = placed(world)
    nodes = RankState.objects.filter(run=run).order_by("rank").values_list("node__name", flat=True)
    assert list(nodes) == ["swap-1", "swap-2", "swap-3"]
    spec = spec_of(run, run.ranks.get(rank=1).node)
    assert (spec.local, len(spec.ranks)) == ((1,), 3)


@pytest.mark.parametrize(
    ("gpus", "workers", "shares"),
    [
        ({"a": 4, "b": 4}, 5, {"a": 3, "b": 2}),
        ({"a": 1, "b": 8}, 6, {"a": 1, "b": 5}),
        ({"a": 0, "b": 2}, 2, {"b": 2}),
    ],
)
def test_workers_are_spread_over_data_centres(
    gpus: dict[str, int], workers: int, shares: dict[str, int]
) -> None:
    assert spread(workers, gpus) == shares


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"workers": 99}, "workers", "At most 6, the GPUs of that device"),
        ({"heads": 5}, "heads", "Must divide hidden = 32"),
        ({"memory_gib": 1e-6}, "memory_gib", "Infeasible"),
        ({"memory_gib": 200}, "memory_gib", "A worker uses up to 200.00 GiB of 80 GiB"),
        ({"policy": "atlas"}, "__all__", "Policy (policy): leave it out with strategy swap"),
        ({"recoveries": "3"}, "__all__", "the run continues without a lost worker"),
        ({"datacenters": []}, "datacenters", "Choose at least one data centre."),
        ({"device": "emulated", "forward_ms": 1}, "forward_ms", "At least 5 ms on device emulated"),
    ],
)
def test_what_cannot_be_is_refused_at_its_field(
    world: World, changes: dict[str, Any], field: str, says: str
) -> None:
    three_nodes(world)
    world.hear()
    errors = errors_of(world.client("operator").post("/runs/swap/", values(world, **changes)))
    assert set(errors) == {field}, errors
    assert says in str(errors[field])
    assert not Run.objects.exists()


def test_data_centres_without_a_link_are_refused(world: World) -> None:
    everywhere = [dc.pk for dc in world.dcs]  # no link joins east and west
    sent = values(world, device="emulated", workers=6, datacenters=everywhere)
    errors = errors_of(world.client("operator").post("/runs/swap/", sent))
    assert "workers are in east and west, but no link joins them" in str(errors).lower()


def test_the_check_says_what_a_launch_would_meet(world: World) -> None:
    nodes = three_nodes(world)
    world.hear(*nodes)
    Node.objects.filter(dc=world.dcs[0]).update(seen_hardware={"memory_bytes": 8 << 30})
    sent = values(world, check="1", microbatches=1)
    page = world.client("operator").post("/runs/swap/", sent)
    checks = {check["name"]: check for check in page.context["form"].dry["checks"]}
    assert not checks["Swap plan"]["ok"]
    assert "accumulation 1 does not cover loading" in checks["Swap plan"]["text"]
    assert checks["Host memory in east"]["ok"]
    assert "survives the loss of any one node" in checks["Loss of a node"]["text"]
    assert "6 of 6 cpu GPUs are idle, 3 needed" in checks["GPUs in east"]["text"]
    assert not Run.objects.exists()


def test_a_swap_plan_fills_in_the_form(world: World) -> None:
    question = "model=gpt-3-6.7b&gpu=v100&mfu=0.5&dtype_bytes=4&recompute=on&resident=2&gradients=host"
    question += "&micro_batch=1&workers=4&global_batch=64&memory_gib=20"
    plan = world.client("operator").get(f"/swap/?{question}")
    assert f"/runs/swap/?{question}".replace("&", "&amp;") in plan.content.decode()
    form = world.client("operator").get(f"/runs/swap/?{question}").context["form"]
    assert (form["layers"].value(), form["hidden"].value(), form["vocab"].value()) == (32, 4096, 50_257)
    assert form["memory_gib"].value() == 20
    accumulation = plan.context["answer"]["accumulation"]
    assert form["microbatches"].value() == accumulation
    forward_s = sum(part["forward_s"] for part in plan.context["answer"]["sub_models"])
    assert form["forward_ms"].value() == pytest.approx(1e3 * forward_s)
    assert "/runs/swap/" not in world.client("viewer").get(f"/swap/?{question}").content.decode()


def test_a_swap_plan_whose_values_do_not_go_together_fills_in_nothing(world: World) -> None:
    question = "model=gpt-3-small&gpu=v100&mfu=0.5&dtype_bytes=4&recompute=on&resident=2&gradients=host"
    question += "&micro_batch=1&stages=128&microbatches=4&mbps=400"
    page = world.client("operator").get(f"/runs/swap/?{question}")
    assert page.status_code == 200
    assert "The swap plan of this address cannot be read" in page.content.decode()


def test_a_clone_keeps_the_workers_and_changes_what_it_says(world: World) -> None:
    three_nodes(world)
    run = launched(world)
    client, address = world.client("operator"), f"/runs/{run.pk}/clone/"
    form = client.get(address).context["form"]
    assert "policy" not in form.fields
    sent = {name: form[name].value() for name in form.fields if form[name].value() is not None}
    response = client.post(address, {**sent, "gradients": "device", "accumulation": 2, "memory_gib": 0.002})
    assert response.status_code == 302, response.context["form"].errors
    document = Run.objects.latest("pk").job.document
    assert (document["strategy"]["gradients"], document["cell"]["accumulation"]) == ("device", 2)
    assert document["strategy"]["gpu"]["memory_bytes"] == pytest.approx(0.002 * 2**30)
    assert document["datacenters"] == run.job.document["datacenters"]
    refused = errors_of(client.post(address, {**sent, "adapt_percent": "20"}))
    assert "there is no schedule to plan again" in str(refused)


def test_without_a_gpu_the_page_says_what_to_do(world: World) -> None:
    Node.objects.all().delete()
    page = world.client("operator").get("/runs/swap/", follow=True)
    assert "add a data centre with nodes first" in page.content.decode()


def test_only_operators_launch(world: World) -> None:
    for name in ("viewer", "stranger"):
        answer = world.client(name).post("/runs/swap/", values(world, **FORM))
        assert answer.status_code == (403 if name == "viewer" else 302)
    assert not Run.objects.exists()


def test_a_new_form_is_checked_with_its_first_values(world: World) -> None:
    page = world.client("operator").get("/runs/swap/")
    checks = {check["name"]: check for check in page.context["form"].dry["checks"]}
    assert checks["Swap plan"]["text"] == "4 sub-models, 6 loads per step; computing covers loading."
    assert "0.7 MiB of 80 GiB" in checks["Memory"]["text"]
