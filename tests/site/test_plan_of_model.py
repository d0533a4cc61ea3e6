"""Plans of a model are launched: a small model with its times, or the planned one itself."""

from typing import Any

import pytest

from engine.inputs import parse
from engine.job.flat import in_sections
from engine.job.job import TrainJob
from engine.job.locations import gpus_needed
from engine.job.memory import stage_memory
from engine.plan.cell import scenario_of
from engine.plan.request import PlanRequest
from engine.schedule.scenario import Scenario
from engine.simulate import simulate
from tests.runtime.jobs import document as train
from tests.site.world import VALUES, World
from webapp.inventory.models import Node
from webapp.jobs.dry import dry_run
from webapp.jobs.models import Run
from webapp.jobs.services import launch_plan
from webapp.planning import compose
from webapp.planning.document import site_job, train_document
from webapp.planning.models import Plan
from webapp.planning.plan_cell import engine_option
from webapp.planning.services import create_plan

GIB = 2**30


def planned(world: World, **changes: Any) -> Plan:
    """A plan of Llama 3 8B over the three data centres, unless `changes` say otherwise."""
    values = {
        **VALUES,
        "source": "model",
        "model": "llama-3-8b",
        "mfu": 0.4,
        "datacenters": world.dcs,
        "method": "search",
        "policy": "varuna",
        "trains": "small",
        "device": "emulated",
        **changes,
    }
    return create_plan(
        world.users["operator"],
        team=world.team,
        name=f"of a model {Plan.objects.count()}",
        request=compose.request_of(values),
        training=compose.training_of(values),
    )


def best(plan: Plan) -> dict[str, Any]:
    option: dict[str, Any] = plan.result["options"][plan.result["best"]]
    return option


def document(plan: Plan) -> dict[str, Any]:
    return train_document(plan.request, best(plan), plan.training)


@pytest.mark.parametrize("policy", ["varuna", "atlas", "1f1b"])
def test_a_small_model_takes_the_times_and_messages_of_the_planned_one(world: World, policy: str) -> None:
    plan = planned(world, policy=policy)
    run = launch_plan(world.users["operator"], plan, plan.result["best"])
    job, option = parse(TrainJob, run.job.document), best(plan)
    assert job.model.layers == VALUES["layers"]
    assert job.device.kind == "emulated"
    assert job.wan_bytes == 8192 * 4096 * 2  # of one sequence, in numbers of two bytes
    assert (job.cell.stages, job.cell.pipelines, job.cell.cells) == (
        6,
        option["pipelines"],
        option["dp_cells"],
    )
    assert len(set(job.times.forward)) > 1, "32 layers on 6 stages: some have more"
    # What the runtime makes of the document, and what the planner made of the request, are the same cell, but
    # that a job does not say how fast its data centres are inside.
    cell = scenario_of(parse(PlanRequest, plan.request), engine_option(option))
    alone = parse(Scenario, {**cell.model_dump(), "lan": {}})
    assert simulate(job.scenario).makespan == pytest.approx(simulate(alone).makespan, rel=1e-6)
    assert simulate(cell).makespan == pytest.approx(option["pp_time_ms"])


def test_the_planned_model_itself_is_trained_on_nodes_that_compute(world: World) -> None:
    Node.objects.update(device="cpu")
    plan = planned(world, model="tiny", trains="planned", device="cpu", model_micro_batch=[2])
    own = document(plan)
    shape = {"layers": 6, "hidden": 64, "heads": 4, "ffn": 256, "seq": 64, "family": "gpt"}
    assert own["model"] == shape
    assert own["device"] == {"kind": "cpu", "dtype": "bf16"}
    assert (own["cell"]["micro_batch"], own["cell"]["recompute"]) == (2, True)
    job = parse(TrainJob, own)
    assert job.tensor_bytes == plan.result["activation_bytes"]
    assert [len(layers) for layers in job.layers_of_stage] == [1] * 6
    world.hear()
    run = launch_plan(world.users["operator"], plan, plan.result["best"])
    assert run.job.document == own


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tp": [2], "partitions": [4]}, "a stage is one emulated GPU: plan with 1"),
        ({"model": "tiny", "trains": "planned"}, "at least 5 ms on device emulated"),
        ({"steps": None}, "has no section Training"),
        ({"layers": 4}, "at least one layer per stage"),
    ],
)
def test_what_a_run_cannot_do_is_said_beside_the_button_and_launches_nothing(
    world: World, changes: dict[str, Any], reason: str
) -> None:
    plan = planned(world, **changes)
    client, index = world.client("operator"), plan.result["best"]
    page = client.get(f"/plans/{plan.pk}/").context["launch"]
    assert not page["ok"]
    assert reason.lower() in page["reason"].lower()
    sent = client.post(f"/plans/{plan.pk}/launch/", {"option": index}, follow=True)
    assert reason.lower() in " ".join(str(message) for message in sent.context["messages"]).lower()
    assert not Run.objects.exists()


def test_the_memory_of_the_nodes_decides_how_large_a_model_is_launched(world: World) -> None:
    """8 billion parameters of 18 bytes: two of bf16, four of fp32."""
    plan = planned(world, trains="planned")
    index, client = plan.result["best"], world.client("operator")
    job = parse(TrainJob, document(plan))
    assert job.model.shape.parameters == 8_030_261_248
    held = 18 * job.model.shape.parameters * job.cell.pipelines / 3  # in each of three data centres, about
    Node.objects.update(seen_hardware={"memory_bytes": int(held / 2)})
    world.hear()
    reason = client.get(f"/plans/{plan.pk}/").context["launch"]["reason"]
    assert "Memory in " in reason
    assert "Or copy the plan and have it train a stand-in" in reason
    client.post(f"/plans/{plan.pk}/launch/", {"option": index})
    assert not Run.objects.exists()
    Node.objects.update(seen_hardware={"memory_bytes": int(held * 2)})
    page = client.get(f"/plans/{plan.pk}/")
    assert page.context["launch"]["trains"] == "the planned model of 8.03 billion parameters"
    client.post(f"/plans/{plan.pk}/launch/", {"option": index})
    assert Run.objects.get().job.document["model"]["layers"] == 32


def test_the_memory_of_real_gpus_decides_too(world: World) -> None:
    """The agents' figures count where a node's GPUs have less than their type."""
    Node.objects.update(device="cuda")
    plan = planned(world, trains="planned", device="cuda")
    index = plan.result["best"]
    needed = max(stage.total_bytes for stage in stage_memory(parse(TrainJob, document(plan))))
    for sizes, blocks in (([needed, needed], None), ([needed - 1, needed], False), ([needed - 1] * 2, True)):
        gpus = [{"name": "A100", "memory_bytes": size} for size in sizes]
        for node in world.nodes:  # of two in a data centre, one may have large GPUs
            Node.objects.filter(pk=node.pk).update(seen_hardware={"gpus": gpus[:1]})
            twin = {"dc": node.dc, "pool": node.pool, "gpus": 4, "device": "cuda"}
            Node.objects.update_or_create(
                twin | {"seen_hardware": {"gpus": gpus[1:]}}, name=f"{node.name}-twin"
            )
        checks = [check for check in dry_run(plan, index)["checks"] if check["name"].startswith("Memory in")]
        assert [check["blocks"] for check in checks] == ([] if blocks is None else [blocks] * len(checks))
        assert bool(checks) == (blocks is not None)


def test_a_model_too_large_for_the_machines_of_its_nodes_is_not_launched(world: World) -> None:
    """Ranks without GPUs of their own hold weights in the machine's memory, if we know how much it has."""
    plan = planned(world, hidden=1024, heads=8)
    index = plan.result["best"]
    assert "Memory in east" not in str(dry_run(plan, index))
    Node.objects.update(seen_hardware={"memory_bytes": GIB // 8})
    world.hear()
    client = world.client("operator")
    reason = client.get(f"/plans/{plan.pk}/").context["launch"]["reason"]
    assert "Memory in " in reason
    assert "of its nodes have 0.12 GiB" in reason
    client.post(f"/plans/{plan.pk}/launch/", {"option": index})
    assert not Run.objects.exists()
    Node.objects.update(seen_hardware={"memory_bytes": 64 * GIB})
    client.post(f"/plans/{plan.pk}/launch/", {"option": index})
    assert Run.objects.count() == 1


def test_memory_that_a_plan_keeps_for_prefill_is_in_the_launch_form(world: World) -> None:
    plan = planned(world, weight_budget_gb=3.0, kv_budget_gb=1.5)
    page = world.client("operator").get(f"/plans/{plan.pk}/launch/{plan.result['best']}/")
    form = page.context["form"]
    assert form["prefill_weight_budget_gb"].value() == 3.0
    assert form["prefill_kv_budget_gb"].value() == 1.5
    assert "3 GB for weights and 1.5 GB for KV caches" in page.content.decode()
    shown = {field.name: field.value() for field in form if field.value() is not None}
    latency = {"prefill_latency_a_ms": 3, "prefill_latency_b_ms": 0.2, "prefill_latency_c_ms": 0}
    sent = {**shown, "name": "sells", "prefill_checkpoint": "/models/tiny", **latency}
    world.client("operator").post(f"/plans/{plan.pk}/launch/{plan.result['best']}/", sent)
    section = Run.objects.get(job__name="sells").document["prefill"]
    assert (section["weight_budget_gb"], section["kv_budget_gb"]) == (3.0, 1.5)


@pytest.mark.parametrize("trains", ["small", "planned"])
def test_a_copy_begins_with_what_the_plan_trains(world: World, trains: str) -> None:
    plan = planned(world, trains=trains, device="cpu", hidden=64)
    again = compose.initial_of(plan)
    assert (again["trains"], again["device"], again["steps"]) == (trains, "cpu", VALUES["steps"])
    assert ("hidden" in again) == (trains == "small")


def test_orders_that_a_plan_found_are_launched_with_it(world: World) -> None:
    plan = planned(world)
    index = plan.result["best"]
    text = str(simulate(parse(TrainJob, document(plan)).scenario).timeline.schedule)  # type: ignore[union-attr]
    plan.result["options"][index]["schedule"] = text
    assert launch_plan(world.users["operator"], plan, index).job.document["strategy"]["schedule"] == text
    cut = {**best(plan), "schedule": text.replace("chunks 1", "chunks 2")}
    without = train_document(plan.request, cut, plan.training)
    assert "schedule" not in without["strategy"], "12 chunks of 6 layers"


def test_the_site_needs_a_gpu_for_each_rank_of_a_stage() -> None:
    given = train(tp=2, datacenters=[{"name": "north", "gpus": 8}, {"name": "south", "gpus": 4}])
    alone = gpus_needed(in_sections({**given, "tp": 1}))
    assert site_job(given).cell.tp == 2
    assert gpus_needed(in_sections(given)) == {name: 2 * count for name, count in alone.items()}
