"""The overview and the map: the database counts as counting one by one does; flows reach their links."""

import itertools
import re
from collections import Counter
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from engine.job.shape import shape_of
from tests.site.many import fill
from tests.site.world import World, make_dc
from webapp.inventory.models import DataCenter, Node, NodeState, WanLink
from webapp.inventory.selectors.use import Use, gpu_use, together
from webapp.inventory.selectors.worldmap import drawing
from webapp.jobs.models import RANK_OVER, RankState, Run
from webapp.live.selectors import run_usage, usages
from webapp.overview import context


@pytest.fixture(autouse=True)
def patient(settings: Any) -> None:
    """Nodes stay online for as long as a slow machine takes."""
    settings.NODE_SILENT_AFTER_S = 12 * 3600


def counted_one_by_one(dc: DataCenter) -> dict[str, Any]:
    nodes = list(Node.objects.filter(dc=dc).select_related("pool"))
    held = [rank for rank in RankState.objects.filter(dc=dc) if rank.state not in RANK_OVER]
    states = Counter(node.state for node in nodes)
    gpus = sum(node.gpus for node in nodes)
    return {
        "gpus": gpus,
        "busy": min(gpus, len(held)),
        "silent": sum(node.gpus for node in nodes if node.state == NodeState.SILENT),
        "never": sum(node.gpus for node in nodes if node.state == NodeState.NEVER),
        "nodes": len(nodes),
        "nodes_silent": states[NodeState.SILENT],
        "nodes_never": states[NodeState.NEVER],
        "cost_per_hour": sum(float(rank.node.pool.price_per_gpu_hour) for rank in held),
        "whole_cost_per_hour": sum(node.gpus * float(node.pool.price_per_gpu_hour) for node in nodes),
    }


def test_use_is_what_counting_one_by_one_gives(world: World) -> None:
    fill(world, range(45))
    dcs = list(DataCenter.objects.all())
    answer = gpu_use([dc.pk for dc in dcs])
    assert answer == gpu_use(DataCenter.objects.order_by().values("pk"))
    assert {"online", "silent", "never"} <= {str(node.state) for node in Node.objects.all()}
    for dc in dcs:
        use, wanted = answer.get(dc.pk, Use()), counted_one_by_one(dc)
        assert {name: round(getattr(use, name), 6) for name in wanted} == {
            name: round(value, 6) for name, value in wanted.items()
        }
    whole = together(answer.values())
    assert whole.gpus == sum(node.gpus for node in Node.objects.all())
    assert whole.busy == sum(use.busy for use in answer.values())
    assert whole.busy > 0


def test_usages_of_several_runs_are_those_of_each_and_one_query(world: World) -> None:
    assert usages([]) == {}
    fill(world, range(20))
    runs = list(Run.objects.select_related("job").order_by("pk")[:4])
    with CaptureQueriesContext(connection) as queries:
        by_run = usages(runs)
    assert len(queries) == 1
    assert by_run == {
        run.pk: run_usage(run, shape_of(run.job.document), run.predicted.get("utilization")) for run in runs
    }
    assert sum(usage is not None for usage in by_run.values()) == 1


def test_overview_and_map_show_what_goes_over_a_link(world: World) -> None:
    fill(world, range(20))
    run = next(run for run in Run.objects.select_related("job").order_by("pk"))
    usage = run_usage(run, shape_of(run.job.document), run.predicted.get("utilization"))
    assert usage
    sent = sum(link["mean_gbps"] for link in usage["links"] if {link["from"], link["to"]} == {0, 1})
    shown = context(world.users["viewer"])
    (line,) = (line for line in shown["map"].lines if line.link == world.link)
    assert line.gbps == sent > 0
    everything = sum(link["mean_gbps"] for link in usage["links"])
    assert shown["totals"]["wan_gbps"] == everything
    drawn = re.compile(r'class="link used"')
    for address in ("/", "/map/"):
        assert len(drawn.findall(world.client("viewer").get(address).content.decode())) == 2
    assert not context(world.users["stranger"])["map"].lines


def test_a_run_of_another_team_with_links_of_the_same_names_changes_nothing(world: World) -> None:
    fill(world, range(20))
    theirs = DataCenter.objects.create(team=world.users["stranger"].memberships.get().team, name="east")
    assert world.dcs[0].name == theirs.name
    assert context(world.users["stranger"])["totals"]["wan_gbps"] == 0


def test_many_silent_nodes_are_one_line(world: World) -> None:
    from datetime import timedelta

    from django.utils import timezone

    Node.objects.update(last_seen=timezone.now() - timedelta(days=1))
    few = context(world.users["viewer"])
    assert [entry["title"].split(" silent")[0] for entry in few["attention"]] == [
        f"Node {node.name}" for node in sorted(world.nodes, key=lambda node: node.name)
    ]
    fill(world, range(200))
    many = context(world.users["viewer"])
    (entry,) = (each for each in many["attention"] if "silent" in each["title"])
    assert entry["title"] == f"{many['totals']['nodes_silent']} nodes are silent"
    rows = world.client("viewer").get(entry["url"]).context["table"].paginator.count
    assert rows == many["totals"]["nodes_silent"] > 3


def test_every_link_in_use_has_its_figures(world: World) -> None:
    dcs = [make_dc(world.team, f"dc{i}", latitude=50 + i / 100, longitude=8 + i / 100) for i in range(10)]
    links = [
        WanLink.objects.create(a=a, b=b, latency_ms=1, bandwidth_gbps=1)
        for a, b in itertools.combinations(dcs, 2)
    ]
    used = {(world.team.pk, frozenset((link.a.name, link.b.name))): 0.5 for link in links[:6]}
    drawn = drawing(dcs, links, {}, of=len(dcs), flows=used)
    assert [line.link for line in drawn.lines] == links
    assert all(line.label for line in drawn.lines[:6])
