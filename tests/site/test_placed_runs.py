"""Runs on a placement: the GPUs of its groups and pipelines, those and no others."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InputError
from engine.inputs import parse
from engine.job.all_reduce import all_reduces
from engine.job.changed import changed
from engine.job.job import TrainJob
from engine.job.shape import lanes, shape_of
from tests.site.computations import PLACED_TRAINING, answered, joined_placement, placement_question
from tests.site.world import World
from webapp.computations.models import Computation, ComputationKind
from webapp.inventory.models import Node
from webapp.jobs.allocate import allocate
from webapp.jobs.models import RankState, Run
from webapp.jobs.queue import Queue
from webapp.jobs.reconcile import spec_of
from webapp.jobs.services import clone_run, launch_placement
from webapp.placement.network import network_from
from webapp.placement.placed import placed_job

FORM: dict[str, Any] = {
    "name": "placed",
    "steps": 5,
    "layers": 4,
    "hidden": 32,
    "heads": 2,
    "seq": 32,
    "microbatches": 4,
    "micro_batch": 1,
    "policy": "1f1b",
    "forward_ms": 20,
    "backward_ms": 40,
    "recompute_ms": 0,
    "lr": 1e-3,
    "seed": 0,
}


@pytest.fixture
def placed(world: World) -> Computation:
    return joined_placement(world)


def launched(world: World, placed: Computation) -> Run:
    return launch_placement(
        world.users["operator"], placed, name="placed", placed=placed_job(placed, PLACED_TRAINING)
    )


def mixed(placed: Computation) -> Computation:
    """The same devices, in pipelines that change from one data centre to the next at different stages."""
    ways = [[0, 1, 4, 8], [2, 5, 6, 9], [3, 7, 10, 11]]  # east has 0 to 3, mid 4 to 7, west 8 to 11
    groups = [sorted(way[stage] for way in ways) for stage in range(4)]
    assert placed.answer is not None
    placed.answer = {"placement": {**placed.answer["placement"], "pipelines": ways, "groups": groups}}
    placed.save(update_fields=["answer"])
    return placed


def gpus_of(run: Run) -> list[tuple[str, int]]:
    ranks = RankState.objects.filter(run=run).select_related("node").order_by("rank")
    return [(rank.node.name, rank.gpu) for rank in ranks]


def test_every_rank_gets_the_gpu_of_its_place(world: World, placed: Computation) -> None:
    world.hear()
    run = launched(world, placed)
    assert allocate(run)
    network = network_from(placed.request["network"])
    assert placed.answer is not None
    ways = placed.answer["placement"]["pipelines"]
    assert gpus_of(run) == [
        network.gpu_of_device[device] and tuple(network.gpu_of_device[device]) for w in ways for device in w
    ]
    job = parse(TrainJob, run.job.document)
    assert job.cell.devices is not None
    spec = spec_of(run, world.nodes[0])
    assert [rank.dc for rank in spec.ranks] == [dc for dcs in job.dcs_of_pipeline for dc in dcs]
    assert [rank.dc_name for rank in spec.ranks] == [rank.node.partition("-")[0] for rank in spec.ranks]
    assert run.predicted["iteration_ms"] > 0


def test_pipelines_through_different_data_centres(world: World, placed: Computation) -> None:
    world.hear()
    run = launched(world, mixed(placed))
    job = parse(TrainJob, run.job.document)
    assert job.is_mixed
    assert allocate(run)
    shape = shape_of(run.job.document)
    drawn = lanes(shape, list(run.ranks.select_related("node")))
    for lane in drawn:
        assert lane["node"].startswith(shape.dcs[lane["dc"]])
        assert lane["dc"] == job.dcs_of_pipeline[lane["pipeline"]][lane["stage"]]
    directions = {(link["from"], link["to"]) for link in shape.links}
    crossed = {pair for dcs in job.dcs_of_pipeline for pair in pairwise(dcs)}
    assert {(a, b) for a, b in crossed if a != b} <= directions
    page = world.client("operator").get(f"/runs/{run.pk}/")
    assert page.status_code == 200


def test_it_waits_for_its_own_gpus_only(world: World, placed: Computation) -> None:
    world.hear()
    first, second = launched(world, placed), launched(world, placed)
    assert allocate(first)
    assert not allocate(second)
    second.refresh_from_db()
    assert "GPU" in second.waits_for
    RankState.objects.filter(run=first).delete()
    Node.objects.filter(pk=world.nodes[1].pk).update(last_seen=None)
    queue = Queue()
    for run in queue.runs:
        queue.advance(run)
    queue.tell()
    second.refresh_from_db()
    assert second.needs_action
    assert "mid" in second.waits_for


def test_a_clone_stays_where_it_is_placed(world: World, placed: Computation) -> None:
    run = launched(world, placed)
    document = changed(run.job.document, {"optimizer.steps": 3})
    again = clone_run(world.users["operator"], run, name="again", document=document)
    assert again.job.gpu_of_rank == run.job.gpu_of_rank
    assert len(again.job.gpu_of_rank) == 12


def test_what_cannot_be_run_is_refused_with_its_reason(world: World) -> None:
    question = {**placement_question(world)}
    old = {
        **question,
        "network": {name: v for name, v in question["network"].items() if name != "gpu_of_device"},
    }
    with pytest.raises(InputError, match="place the devices again"):
        placed_job(answered(world, old, ComputationKind.PLACEMENT), PLACED_TRAINING)
    case = {
        **question,
        "source": "case",
        "document": {"scenario": "spot", "evaluations": 100},
        "network": None,
    }
    with pytest.raises(InputError, match="not made from the inventory"):
        placed_job(answered(world, {**case, "baselines": False}, ComputationKind.PLACEMENT), PLACED_TRAINING)


def test_nodes_that_are_gone_are_named_in_place_of_the_form(world: World, placed: Computation) -> None:
    client = world.client("operator")
    url = f"/placement/{placed.pk}/launch/"
    assert client.get(url).status_code == 200
    Node.objects.filter(pk=world.nodes[1].pk).update(name="elsewhere")
    refused = client.post(url, FORM, follow=True)
    assert "mid-1 in mid" in refused.content.decode()
    assert not Run.objects.exists()
    Node.objects.filter(pk=world.nodes[1].pk).update(name="mid-1", gpus=3)
    assert "GPU 3 of mid-1" in client.post(url, FORM, follow=True).content.decode()


def test_the_form_checks_and_launches(world: World, placed: Computation) -> None:
    world.hear()
    client = world.client("operator")
    url = f"/placement/{placed.pk}/launch/"
    checked = client.post(url, {**FORM, "check": "1"})
    assert checked.status_code == 200
    assert "The 12 GPUs of the placement are idle" in checked.content.decode()
    assert not Run.objects.exists()
    few = client.post(url, {**FORM, "layers": 3})
    assert few.status_code == 422
    assert "layers" in few.context["form"].errors
    response = client.post(url, {**FORM, "idempotency_key": "once"})
    again = client.post(url, {**FORM, "idempotency_key": "once"})
    assert response.headers["Location"] == again.headers["Location"]
    run = Run.objects.get()
    assert run.job.plan_copy["placement"]["id"] == str(placed.pk)
    assert f'/placement/{placed.pk}/">{placed.name}<' in client.get(f"/runs/{run.pk}/").content.decode()
    assert world.client("viewer").get(url).status_code == 403


def test_the_form_has_what_other_launch_forms_have(world: World, placed: Computation) -> None:
    world.hear()
    more = {
        "checkpoint_dir": "/shared/ckpt",
        "checkpoint_every": 2,
        "recoveries": 3,
        "adapt_percent": 20,
        "clip": 1,
        "memory_limit": 4,
    }
    response = world.client("operator").post(
        f"/placement/{placed.pk}/launch/", {**FORM, **more, "hidden": 64}
    )
    assert response.status_code == 302, response.context["form"].errors
    job = Run.objects.get().job
    document = job.document
    saves, failures = document["persistence"]["checkpoint"], document["failures"]
    assert (saves["dir"], saves["every"]) == ("/shared/ckpt", 2)
    assert (failures["recovery"]["attempts"], failures["adapt"]["deviation"]) == (3, 0.2)
    assert (document["optimizer"]["clip"], document["model"]["hidden"]) == (1, 64)
    assert document["strategy"]["memory_limit"] == 4
    assert document["cell"]["devices"] == placed_job(placed, PLACED_TRAINING).document["cell"]["devices"]
    assert job.gpu_of_rank == placed_job(placed, PLACED_TRAINING).gpu_of_rank


@pytest.mark.parametrize(
    ("choice", "stored"), [("auto", "auto"), ("sharded", "sharded"), ("", None), ("tree", None)]
)
def test_the_form_says_how_gradients_are_summed_and_the_page_names_it(
    world: World, placed: Computation, choice: str, stored: str | None
) -> None:
    mixed(placed)
    client, address = world.client("operator"), f"/placement/{placed.pk}/launch/"
    form = client.get(address).context["form"]
    assert form["all_reduce"].value() == "auto"
    answer = client.post(address, {**FORM, "all_reduce": choice})
    if choice == "tree":
        assert "tree" in str(answer.context["form"].errors["all_reduce"])
        return
    run = Run.objects.get(job__name="placed")
    assert run.job.document["cell"].get("all_reduce") == stored
    used = all_reduces(parse(TrainJob, run.job.document))
    page = client.get(f"/runs/{run.pk}/").content.decode()
    words = page.partition("all-reduce ")[2].partition("</span>")[0]
    assert all(kind in words for kind in used)
    assert stored != "sharded" or words == "sharded"


def test_the_form_takes_a_config_with_its_weights(world: World, placed: Computation) -> None:
    """Any dense decoder of transformers, not only the GPT of a shape."""
    whole = json.loads((Path(__file__).parent.parent / "configs" / "qwen2.5-7b.json").read_text())
    config = {**whole, "num_hidden_layers": 4, "hidden_size": 56, "intermediate_size": 64, "vocab_size": 512}
    config["tie_word_embeddings"] = False  # no link joins the ends
    sent = {**FORM, "layers": "", "config": json.dumps(config), "init": "/m", "prepared": "/data/chats"}
    client, url = world.client("operator"), f"/placement/{placed.pk}/launch/"
    answer = client.post(url, sent)
    assert answer.status_code == 302, answer.context["form"].errors
    run = Run.objects.get()
    assert run.document["model"] == {"config": config, "seq": 32, "init": "/m"}
    assert run.document["data"] == {"prepared": "/data/chats"}
    for changes, field in (
        ({"config": ""}, "layers"),
        ({"vocab": "512"}, "vocab"),
        ({"config": "{"}, "config"),
        ({"config": json.dumps({**config, "hidden_size": 57})}, "config"),
        ({"config": "", "layers": "4"}, "init"),
    ):
        errors = client.post(url, {**sent, **changes}).context["form"].errors
        assert set(errors) == {field}, errors
