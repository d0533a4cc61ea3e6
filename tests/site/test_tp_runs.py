"""Runs whose stages several ranks compute: GPUs side by side on one node, launched, shown and trained."""

from pathlib import Path
from typing import Any

import pytest

from engine.errors import InputError
from engine.inputs import parse
from engine.job.flat import in_sections
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec, single_machine
from tests.runtime.test_training_equals_single import reference
from tests.site.telemetry import take_in
from tests.site.test_chat_journey import machines_of
from tests.site.test_new_plan import made
from tests.site.test_reconcile import Nodes, report
from tests.site.world import World
from webapp.inventory.models import Node
from webapp.jobs.gpu_inventory import GpuInventory, _side_by_side
from webapp.jobs.models import Job, RankState, Run, Status, lane_of
from webapp.jobs.reconcile import reconcile
from webapp.jobs.services import launch_plan
from webapp.planning.document import train_document

DOCUMENT = in_sections(
    {
        "datacenters": [{"name": "east", "gpus": 4}, {"name": "mid", "gpus": 4}],
        "links": [{"between": ["east", "mid"], "latency_ms": 10, "bandwidth_gbps": 1}],
        "stages": 2,
        "dc_of_stage": [0, 1],
        "pipelines": 2,
        "tp": 2,
        "microbatches": 2,
        "policy": "1f1b",
        "model": {"layers": 2, "hidden": 32, "heads": 4, "seq": 16},
        "device": "cpu",
        "dtype": "fp64",
        "steps": 3,
        "lr": 1e-3,
        "seed": 7,
    }
)


def launched(world: World, **cell: Any) -> Run:
    """A run of the document on CPU nodes that answer."""
    Node.objects.update(device="cpu")
    world.hear()
    document = {**DOCUMENT, "cell": {**DOCUMENT["cell"], **cell}}
    return launch_plan(world.users["operator"], world.plan, 0, document=document)


def specs_of(run: Run) -> list[LaunchSpec]:
    """What the site sends to the nodes."""
    nodes = Nodes()
    reconcile(nodes)
    run.refresh_from_db()
    return [LaunchSpec.from_json(kwargs["spec"]) for _, task, kwargs in nodes.sent if task == "start_ranks"]


def test_the_ranks_of_a_stage_get_gpus_side_by_side_on_one_node(world: World) -> None:
    run = launched(world)
    specs = specs_of(run)
    assert len(specs) == 2
    alone = single_machine(parse(TrainJob, DOCUMENT), run="1", log_dir="")
    fields = ("rank", "pipeline", "stage", "shard", "dc", "dc_name")
    for spec in specs:
        assert [[getattr(rank, name) for name in fields] for rank in spec.ranks] == [
            [getattr(rank, name) for name in fields] for rank in alone.ranks
        ]
    by_stage: dict[tuple[int, int], list[RankState]] = {}
    for rank in run.ranks.select_related("node"):
        by_stage.setdefault((rank.pipeline, rank.stage), []).append(rank)
    assert len(by_stage) == 4
    for ranks in by_stage.values():
        assert len({rank.node_id for rank in ranks}) == 1
        assert [rank.gpu % 2 for rank in ranks] == [0, 1]
        assert ranks[1].gpu == ranks[0].gpu + 1


@pytest.mark.parametrize(
    ("free", "together", "taken"),
    [
        ([0, 1, 2, 3], 2, [0, 1, 2, 3]),
        ([1, 2, 3], 2, [2, 3]),
        ([0, 3], 2, [0, 3]),
        ([0, 1, 2, 5, 6, 7], 4, [0, 1, 2, 5]),
        ([1, 4, 5, 6, 7], 4, [4, 5, 6, 7]),
        ([2], 2, []),
        ([3, 5], 1, [3, 5]),
    ],
)
def test_gpus_in_groups(free: list[int], together: int, taken: list[int]) -> None:
    assert _side_by_side(free, together) == taken


def test_gpus_on_several_nodes_are_no_group(world: World) -> None:
    Node.objects.update(gpus=3)
    run = launched(world)
    assert specs_of(run) == []
    message = "Waits for 4 GPUs in east, 2 on one node for each stage, 2 are idle: there are 2 in total"
    assert message in run.waits_for
    supply = GpuInventory([(world.team.pk, DOCUMENT)]).supply(world.team.pk, DOCUMENT)
    assert [(pool.needed, pool.idle, pool.total) for pool in supply.values()] == [(4, 2, 2)] * 2
    Node.objects.update(gpus=5)
    assert len(specs_of(run)) == 2


def test_what_a_run_cannot_do_with_tp_stands_at_its_field(world: World) -> None:
    run = launched(world)
    client, url = world.client("operator"), f"/runs/{run.pk}/clone/"
    form = client.get(url).context["form"]
    shown = {field.name: field.value() for field in form if field.value() is not None}
    for changes, field in (
        ({"recoveries": "2"}, "recoveries"),
        ({"adapt_percent": "20"}, "adapt_percent"),
        ({"all_reduce": "sharded"}, "all_reduce"),
    ):
        answer = client.post(url, {**shown, **changes})
        assert set(answer.context["form"].errors) == {field}
        assert "tp = 2" in str(answer.context["form"].errors[field])
    answer = client.post(url, shown)
    assert answer.status_code == 302, answer.context["form"].errors
    assert Run.objects.latest("pk").document["cell"]["tp"] == 2


def test_a_plan_with_tp_is_launched_but_not_on_emulated_gpus(world: World) -> None:
    given = {"model": "gpt-a", "tp": "2", "partitions": "2", "policy": "1f1b", "max_dp_cells": "1"}
    Node.objects.update(device="cpu")
    plan = made(world, **given, device="cpu")
    option = plan.result["options"][plan.result["best"]]
    document = train_document(plan.request, option, plan.training)
    assert document["cell"]["tp"] == 2
    job = parse(TrainJob, document)
    assert sum(option["gpus_used"].values()) == job.cell.stages * job.cell.pipelines * 2
    Node.objects.update(device="emulated")
    emulated = made(world, **given, device="emulated", name="emulated")
    with pytest.raises(InputError, match="one emulated GPU: plan with 1") as refused:
        train_document(emulated.request, option, emulated.training)
    assert refused.value.field.rpartition(".")[2] == "tp"


@pytest.mark.timeout(300)
def test_losses_are_those_of_one_process_and_pages_show_all_ranks(world: World, tmp_path: Path) -> None:
    run = launched(world)
    specs = specs_of(run)
    losses, norms, _ = reference(specs[0].job)
    with machines_of(specs, tmp_path) as machines:
        result = machines.result()
    assert result["losses"] == pytest.approx(losses, rel=1e-9)
    assert result["grad_norms"] == pytest.approx(norms, rel=1e-9)
    nodes = {rank.rank: rank.node.name for rank in run.ranks.select_related("node")}
    events = [
        {**event, "run": str(run.pk), "generation": run.generation}
        for event in machines.events
        if event["kind"] in ("spans", "step", "log")
    ]
    assert {event["rank"] for event in events if event["kind"] == "spans"} == set(range(4)), "leads alone"
    refused = take_in(
        (nodes[event.get("rank", 0)], f"{number}-0", event | {"id": number + 1})
        for number, event in enumerate(events)
    )
    assert refused
    for state in ("running", "finished"):
        report(run, state, range(8))
    run.refresh_from_db()
    assert run.status == Status.SUCCEEDED
    page = world.client("viewer").get(f"/runs/{run.pk}/")
    assert len(page.context["snapshot"]["lanes"]) == 4
    assert len({entry["rank"] for entry in page.context["snapshot"]["spans"]}) == 4
    assert page.context["snapshot"]["usage"]["run"]["utilization"] > 0
    text = page.content.decode()
    assert all(f">{name}</a>" in text for name in ("P1 S1", "P1 S1 T2", "P2 S2 T2"))
    log = world.client("viewer").get(f"/runs/{run.pk}/logs/").content.decode()
    assert "<b>P1 S1 T2</b>" in log


def test_lanes_name_ranks_as_a_launch_numbers_them() -> None:
    spec = single_machine(parse(TrainJob, DOCUMENT), run="1", log_dir="")
    for rank in spec.ranks:
        shard = f" T{rank.shard + 1}" if rank.shard else ""
        assert lane_of(rank.rank, Job(document=DOCUMENT)) == f"P{rank.pipeline + 1} S{rank.stage + 1}{shard}"
