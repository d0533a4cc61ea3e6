"""Figures of GPUs: the latest of each, of the GPUs of a node, while they are fresh and the run goes on."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from tests.events import event
from tests.site.telemetry import placed, take_in
from tests.site.world import World
from webapp.jobs.models import Run
from webapp.live.gpus import FRESH_S
from webapp.live.models import GpuReading

T = 1_790_000_000.0


@pytest.fixture
def run(world: World) -> Run:
    return placed(world)


def say(node: str, *gpus: dict[str, Any], ago_s: float = 0.0) -> None:
    """Let the agent of `node` report `gpus`, which the broker heard of so long ago."""
    entry = f"{int((timezone.now() - timedelta(seconds=ago_s)).timestamp() * 1e3)}-0"
    take_in([(node, entry, {"kind": "gpus", "t": T, "gpus": list(gpus)})])


def figures(world: World, run: Run, name: str = "viewer") -> dict[tuple[str, int], dict[str, Any]]:
    answer = world.client(name).get(f"/runs/{run.pk}/gpus.json").json()["gpus"]
    return {(gpu["node"], gpu["gpu"]): gpu for gpu in answer}


def test_the_latest_figures_are_told_with_the_ranks(world: World, run: Run) -> None:
    for known in figures(world, run).values():
        assert known["memory_bytes"] is None
    [cuda, emulated] = event("gpus").to_dict()["gpus"]
    say("east-1", {**cuda, "utilization": 0.1})
    say("east-1", cuda, {**emulated, "gpu": 1})
    by_gpu = figures(world, run)
    assert len(by_gpu) == 12
    first = by_gpu["east-1", 0]
    assert {name: first[name] for name in cuda} == cuda
    assert abs(first["at"] - timezone.now().timestamp()) < FRESH_S
    assert (first["rank"], first["dc"], first["state"]) == (0, "east", "assigned")
    assert by_gpu["east-1", 1]["memory_bytes"] == 900_000_000
    assert by_gpu["east-1", 1]["power_w"] is None
    assert by_gpu["mid-1", 0]["memory_bytes"] is None
    assert GpuReading.objects.count() == 2


def test_a_gpu_that_is_no_longer_spoken_of_has_no_figures(world: World, run: Run) -> None:
    say("east-1", {"gpu": 0, "memory_bytes": 5}, {"gpu": 1, "memory_bytes": 6})
    say("mid-1", {"gpu": 0, "memory_bytes": 7})
    say("east-1", {"gpu": 1, "memory_bytes": 8})
    by_gpu = figures(world, run)
    assert [by_gpu[key]["memory_bytes"] for key in (("east-1", 0), ("east-1", 1), ("mid-1", 0))] == [
        None,
        8,
        7,
    ]
    say("east-1")
    assert figures(world, run)["east-1", 1]["memory_bytes"] is None


def test_a_node_speaks_for_the_gpus_that_it_has(world: World, run: Run) -> None:
    most = world.nodes[0].gpus
    say("east-1", {"gpu": most - 1}, {"gpu": most}, {"gpu": 1023})
    assert [row.gpu for row in GpuReading.objects.all()] == [most - 1]
    say("unknown", {"gpu": 0})
    assert GpuReading.objects.count() == 1


def test_the_last_word_of_two_on_one_gpu_counts(world: World, run: Run) -> None:
    say("east-1", {"gpu": 0, "memory_bytes": 1}, {"gpu": 0, "memory_bytes": 2})
    assert figures(world, run)["east-1", 0]["memory_bytes"] == 2


@pytest.mark.parametrize(("ago_s", "known"), [(0.0, 5), (FRESH_S / 2, 5), (FRESH_S + 5, None)])
def test_old_figures_say_nothing_of_now(world: World, run: Run, ago_s: float, known: int | None) -> None:
    say("east-1", {"gpu": 0, "memory_bytes": 5}, ago_s=ago_s)
    assert figures(world, run)["east-1", 0]["memory_bytes"] == known


def test_what_gpus_do_after_a_run_is_not_told_as_its_own(world: World, run: Run) -> None:
    say("east-1", {"gpu": 0, "memory_bytes": 5})
    Run.objects.filter(pk=run.pk).update(status="failed", finished_at=timezone.now())
    assert figures(world, run)["east-1", 0]["memory_bytes"] is None


def test_ranks_that_share_a_card_have_the_figures_of_the_card(world: World, run: Run) -> None:
    run.job.document["device"] = {"kind": "cuda", "ranks_per_gpu": 2}
    run.job.save()
    say("east-1", {"gpu": 0, "memory_bytes": 5}, {"gpu": 1, "memory_bytes": 6})
    by_gpu = figures(world, run)
    shown = {gpu: by_gpu[node, gpu]["memory_bytes"] for node, gpu in by_gpu if node == "east-1"}
    assert shown == {gpu: {0: 5, 1: 6}.get(gpu // 2) for gpu in shown}


@pytest.mark.parametrize(
    ("kind", "heads"), [("cuda", ["utilization", "memory", "temperature", "power"]), ("emulated", ["memory"])]
)
def test_the_tab_has_the_figures_that_the_device_gives(
    world: World, run: Run, kind: str, heads: list[str]
) -> None:
    run.job.document["device"] = {"kind": kind}
    run.job.save()
    page = world.client("viewer").get(f"/runs/{run.pk}/").content.decode()
    _, _, row = page.partition('<tr data-rank="0">')
    assert [part.split('"')[1] for part in row.partition("</tr>")[0].split(" data-figure=")[1:]] == heads
    assert ("Process memory" in page) == (kind != "cuda")
    assert f'data-gpus-url="/runs/{run.pk}/gpus.json"' in page
