"""The loop from a run back to a plan: what it measured of stages and links is planned with."""

from typing import Any

import pytest
from django.urls import reverse

from tests.site.telemetry import NODES, T0, placed, spans_event, step_event, take_in
from tests.site.world import World
from webapp.common.markup import as_bytes
from webapp.inventory.models import LinkMeasurement, LinkSource
from webapp.jobs.models import Run
from webapp.jobs.services import record_result
from webapp.planning.models import Plan

CREATE = reverse("planning:plan-create")
# Seconds of F, R and B by stage; stage 4 is the slowest.
TOOK = [(0.020 + 0.001 * stage, 0.020, 0.040) for stage in range(4)] + [
    (0.030, 0.021, 0.045),
    (0.02, 0.0, 0.04),
]


def report(run: Run, iterations: int) -> None:
    for iteration in range(iterations):
        items = []
        for rank in range(12):
            event = spans_event(run, rank, iteration)
            op = event["spans"][0]
            at = T0 + iteration
            event["spans"] = [span for span in event["spans"] if span["track"] != "gpu"]
            for kind, seconds in zip("FRB", TOOK[rank % 6], strict=True):
                if seconds:
                    event["spans"].append({**op, "op": kind, "start": at, "end": at + seconds})
                at += seconds
            items.append((NODES[rank], "1-0", event))
        take_in([*items, ("east-1", "1-0", step_event(run, iteration))], set())


def test_a_plan_begins_with_what_a_run_measured(world: World) -> None:
    run = placed(world)
    report(run, 3)
    client = world.client("operator")
    assert f"{CREATE}?run={run.pk}" in client.get(f"/runs/{run.pk}/").content.decode()
    page = client.get(CREATE, {"run": run.pk})
    measurement, form = page.context["measured"], page.context["form"]
    assert [stage.measured.forward_ms for stage in measurement.stages] == pytest.approx(
        [20, 21, 22, 23, 30, 20]
    )
    assert measurement.slowest.name == "S5"
    assert measurement.slowest.off_by_percent == pytest.approx(100 * (96 / 80 - 1))
    values = {field.name: field.value() for field in form if field.value() is not None}
    assert [values[f"{op}_ms"] for op in ("forward", "recompute", "backward")] == [30.0, 21.0, 45.0]
    assert [link.name for link in measurement.links] == ["east → mid"]
    assert measurement.links[0].gbps == pytest.approx(1.0)  # 5 MB in 20 ms, over two node pairs
    assert measurement.links[0].link == world.link
    values["partitions"] = 6
    chosen = {"order": "gpus", "objective": "throughput", "bill": "used"}  # first in their lists
    answer = client.post(CREATE, {**chosen, **values})
    assert answer.status_code == 302, answer.context["form"].errors
    plan = Plan.objects.get(name=f"{run.job.name} as measured")
    assert plan.request["job"]["forward_ms"] == 30.0
    assert plan.request["job"]["activation_bytes"] == 5_000_000
    assert plan.training == world.plan.training
    again = client.get(CREATE, {"run": run.pk}).context["form"]
    assert again["name"].value() == f"{run.job.name} as measured v2"


def test_a_run_that_measured_nothing_says_so_and_strangers_learn_nothing(world: World) -> None:
    run = placed(world)
    page = world.client("operator").get(CREATE, {"run": run.pk})
    assert page.context["measured"] is None
    assert "no complete iteration yet" in page.content.decode()
    assert world.client("stranger").get(CREATE, {"run": run.pk}).status_code == 404
    assert world.client("operator").get(CREATE, {"run": "x"}).status_code == 200


def test_the_page_of_a_run_adds_up_what_crossed_the_wan_and_its_cost(world: World) -> None:
    run = placed(world)
    before = world.client("viewer").get(f"/runs/{run.pk}/").content.decode()
    assert 'hx-swap="outerHTML" hidden>' in before[before.index('id="wan-traffic"') :].split("\n")[0]
    row: dict[str, Any] = {"from": "east", "to": "mid", "gbps": 0.9, "connections": 17}
    wan = [
        {
            **row,
            **{"from_stage": 0, "to_stage": 1, "bytes": 5e9, "egress_bytes": 6e9, "egress_cost": 0.12},
            "latency_ms": 21.34,
        },
        {
            **row,
            **{"from_stage": 1, "to_stage": 1, "bytes": 2e9, "egress_bytes": 2e9, "egress_cost": 0.04},
            "latency_ms": None,
        },
        {**row, "from": "mid", "to": "east", "bytes": 1e9, "egress_bytes": 1e9},  # of an earlier version
    ]
    record_result(run, {"wan": wan})
    page = world.client("viewer").get(f"/runs/{run.pk}/")
    table = page.context["wan"]
    of = [
        (way.source, way.pipeline_bytes, way.gradient_bytes, way.egress_bytes, way.latency_ms, way.cost)
        for way in table.rows
    ]
    assert of == [("east", 5e9, 2e9, 8e9, 21.34, pytest.approx(0.16)), ("mid", 1e9, 0, 1e9, None, None)]
    assert (table.count, table.total.egress_bytes, table.total.cost) == (2, 9e9, None)
    text = page.content.decode()
    shown = text[text.index('id="wan-traffic"') :]
    assert "0.1600" in shown
    assert '<td class="num">21.3</td>' in shown


def test_the_page_of_a_run_says_what_carries_messages_over_each_hop(world: World) -> None:
    run = placed(world)
    page = world.client("viewer").get(f"/runs/{run.pk}/")
    by_job = [(*hop.stages, hop.first_dc, hop.second_dc) for hop in page.context["hops"].rows]
    assert by_job == [
        ("S1", "S2", "east", "east"),
        ("S2", "S3", "east", "mid"),
        ("S3", "S4", "mid", "mid"),
        ("S4", "S5", "mid", "west"),
        ("S5", "S6", "west", "west"),
    ]
    text = page.content.decode()
    assert "gloo, through host memory" in text
    assert "Transport, through host memory" in text
    last = {"stages": [5, 0], "datacenters": ["west", "east"], "pipelines": [0], "backend": "transport"}
    record_result(run, {"hops": [{**last, "stages": [0, 1], "backend": "nccl"}, last]})
    page = world.client("viewer").get(f"/runs/{run.pk}/")
    assert [hop.carried_by for hop in page.context["hops"].rows] == [
        "NCCL, on the GPUs",
        "Transport, through host memory",
    ]
    assert "S6 and S1" in page.content.decode()


def test_bytes_have_the_unit_that_keeps_them_short() -> None:
    texts = {999.4e9: "999 GB", 999.6e9: "1,000 GB", 1e12: "1 TB", 7.412e13: "74.1 TB", 1.2e16: "12,000 TB"}
    assert {size: as_bytes(size) for size in texts} == texts


def test_what_a_run_knows_of_its_links_is_in_their_history(world: World) -> None:
    run = placed(world)
    row: dict[str, Any] = {"bytes": 1, "egress_bytes": 2, "connections": 17}
    wan = [
        {**row, "from": "east", "to": "mid", "gbps": 0.9, "latency_ms": 12.3456},
        {**row, "from": "mid", "to": "east", "gbps": 0.8, "latency_ms": None},
        {**row, "from": "mid", "to": "west", "gbps": None},
        {**row, "from": "gone", "to": "west", "gbps": 1},
    ]
    for _ in range(2):  # a result that comes twice counts once
        record_result(run, {"wan": wan})
    measurement = LinkMeasurement.objects.get(source=LinkSource.RUN)
    assert (
        measurement.link,
        measurement.bandwidth_gbps,
        measurement.connections,
        measurement.latency_ms,
    ) == (
        world.link,
        0.8,
        17,
        12.346,
    )
    world.link.refresh_from_db()
    assert world.link.bandwidth_gbps == 1
