"""What pages say of runs and ranks, and which data centres a drawing of many shows."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.site.world import make_dc
from webapp.inventory.models import DataCenter, WanLink
from webapp.inventory.selectors.matrix import most_linked
from webapp.jobs.models import Job, Run, Status, lane_of
from webapp.live.payload import run_entry


@given(st.integers(0, 5000), st.integers(1, 100), st.integers(1, 50))
def test_a_lane_names_exactly_one_rank(rank: int, stages: int, pipelines: int) -> None:
    job = Job(document={"cell": {"stages": stages, "pipelines": pipelines, "tp": 8}})
    parts = {part[0]: int(part[1:]) for part in lane_of(rank, job).split()}
    pipeline, stage, shard = parts["P"], parts["S"], parts.get("T", 1)
    assert ((shard - 1) * pipelines + pipeline - 1) * stages + stage - 1 == rank
    assert 1 <= stage <= stages
    assert 1 <= pipeline <= pipelines


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, ""),
        ({"boundary_why": "mid-1 is draining"}, "mid-1 is draining: it ends after a complete iteration."),
        (
            {"boundary_why": "mid-1 is draining", "stop_after": 1233, "again": True},
            "mid-1 is draining: it ends after iteration 1,234; the job then starts again elsewhere, "
            "from its last checkpoint if there is one.",
        ),
        ({"boundary_why": "mid-1 is draining", "stop_after": 0, "status": Status.CANCELLED}, ""),
    ],
)
def test_a_run_says_why_it_is_about_to_end(fields: dict[str, Any], says: str) -> None:
    assert Run(**{"status": Status.RUNNING, **fields}).ending == says


@pytest.mark.django_db
def test_the_page_of_a_run_is_told_of_its_end(world: Any) -> None:
    run = world.launch()
    run.boundary_why = "east is draining"
    assert run_entry(run)["ending"].startswith("east is draining: ")


@pytest.mark.django_db
@pytest.mark.parametrize("most", [1, 2, 4, 5, 6])
def test_of_many_data_centres_the_most_linked_are_drawn(world: Any, most: int) -> None:
    hub, rim = make_dc(world.team, "zz-hub"), make_dc(world.team, "zz-rim")
    for dc in (*world.dcs, rim):
        WanLink.objects.create(
            a=min(hub, dc, key=lambda x: x.pk),
            b=max(hub, dc, key=lambda x: x.pk),
            latency_ms=1,
            bandwidth_gbps=1,
        )
    degree = {"zz-hub": 4, "mid": 3, "east": 2, "west": 2, "zz-rim": 1}
    expected = sorted(degree, key=lambda name: (-degree[name], name))[:most] if most < 5 else sorted(degree)
    shown, of = most_linked(world.users["viewer"], DataCenter.objects.order_by("name"), most)
    assert ([dc.name for dc in shown], of) == (expected, 5)
