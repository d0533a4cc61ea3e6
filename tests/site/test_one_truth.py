"""Pages that speak of the same thing say the same: overview, lists, filters, details, map and live data."""

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from tests.site.telemetry import measure
from tests.site.world import World
from webapp.inventory.models import Node, NodeState
from webapp.jobs.models import TERMINAL, Run, RunState, Status
from webapp.live.models import IterationStat
from webapp.live.selectors import snapshot

# RunState → how a run comes to stand there, and the reason that all pages give.
STATES: dict[RunState, tuple[dict[str, Any], str]] = {
    RunState.QUEUED: ({"status_reason": "Launched by ada."}, "Launched by ada."),
    RunState.WAITING: (
        {"waits_for": "waits for 4 GPUs in west", "status_reason": "Launched."},
        "Waits for 4 GPUs in west",
    ),
    RunState.STARTING: ({"waits_for": "Waits for east-1 to answer"}, "Waits for east-1 to answer"),
    RunState.RUNNING: (
        {"boundary_why": "mid-1 is draining", "stop_after": 8, "status_reason": "All ranks run."},
        "mid-1 is draining: it ends after iteration 9.",
    ),
    RunState.STOPPING: ({"status_reason": "Stopped by ada."}, "Stopped by ada."),
    RunState.SUCCEEDED: ({"status_reason": "Trained 50 iterations."}, "Trained 50 iterations."),
    RunState.FAILED: ({"status_reason": "Rank 3 died & more."}, "Rank 3 died & more."),
    RunState.CANCELLED: ({"status_reason": "Stopped by ada."}, "Stopped by ada."),
}


def put(world: World, state: RunState) -> Run:
    """A run that stands in `state`."""
    run = world.launch()
    status = Status.QUEUED if state == RunState.WAITING else Status(state)
    ended = timezone.now() if status in TERMINAL else None
    fields = {"waits_for": "", "status_reason": "", **STATES[state][0]}
    Run.objects.filter(pk=run.pk).update(status=status, finished_at=ended, **fields)
    run.refresh_from_db()
    return run


def page(client: Client, url: str) -> str:
    answer = client.get(url)
    assert answer.status_code == 200, url
    return unescape(answer.content.decode())


def shown_states(text: str) -> list[tuple[str, str]]:
    """(code, word) of every state on a page."""
    return re.findall(r'<span class="state"[^>]*data-state="([^"]*)"[^>]*>([^<]*)</span>', text)


@pytest.mark.parametrize("state", RunState)
def test_every_page_says_the_same_of_a_run(world: World, state: RunState) -> None:
    run, client, reason = put(world, state), world.client("viewer"), STATES[state][1]
    label = (state.value, state.label)
    overview, listed, detail = (page(client, url) for url in ("/", "/runs/", f"/runs/{run.pk}/"))
    for text in (overview, listed, detail):
        assert label in shown_states(text)
        assert reason in text
    for part in ("logs", "metrics"):
        assert label in shown_states(page(client, f"/runs/{run.pk}/{part}/"))
    live = client.get(f"/runs/{run.pk}/live.json").json()["run"]
    assert (live["state"], live["status_label"], live["reason"]) == (*label, reason)
    assert f"{state.label}, launched" in page(client, "/search?q=three")
    assert label in shown_states(page(client, f"/plans/{world.plan.pk}/"))
    for other in RunState:
        rows = shown_states(page(client, f"/runs/?status={other.value}"))
        assert (label in rows) == (other == state), other


def test_the_filter_offers_the_words_of_the_rows(world: World) -> None:
    world.launch()
    text = page(world.client("viewer"), "/runs/")
    offered = re.findall(r'<input type="checkbox" name="status" value="(\w+)"[^>]*>\s*([^<]*?)\s*<', text)
    assert offered == [(state.value, state.label) for state in RunState]


def test_the_overview_counts_what_the_list_lists(world: World) -> None:
    for state in (RunState.WAITING, RunState.WAITING, RunState.QUEUED, RunState.RUNNING, RunState.STARTING):
        put(world, state)
    client = world.client("viewer")
    text = re.sub(r"<[^>]+>", " ", page(client, "/"))
    for state in (RunState.WAITING, RunState.QUEUED, RunState.RUNNING, RunState.STARTING):
        rows = shown_states(page(client, f"/runs/?status={state.value}")).count((state.value, state.label))
        assert f"{rows} {state.label.lower()}" in text, state
    world.hear()
    text = " ".join(re.sub(r"<[^>]+>", " ", page(client, "/")).split())
    assert "2 runs wait and go on without you" in text
    assert "no run is waiting" not in text


@pytest.mark.parametrize(("iteration", "shown"), [(-1, "–"), (0, "1"), (1234, "1,235")])
def test_overview_and_list_count_the_same_iterations(world: World, iteration: int, shown: str) -> None:
    Run.objects.filter(pk=put(world, RunState.RUNNING).pk).update(iteration=iteration)
    client = world.client("viewer")
    assert f'<td class="num">{shown} / ' in page(client, "/")
    assert f">{shown}</td>" in re.sub(r"\s+", "", page(client, "/runs/"))


def test_every_page_says_the_same_of_a_node(world: World) -> None:
    now = timezone.now()
    seen = {NodeState.ONLINE: now, NodeState.SILENT: now - timedelta(hours=1), NodeState.NEVER: None}
    for node, (state, at) in zip(world.nodes, seen.items(), strict=True):
        Node.objects.filter(pk=node.pk).update(last_seen=at)
        node.refresh_from_db()
        assert node.state == state
    client = world.client("viewer")
    overview, listed, drawn = (page(client, url) for url in ("/", "/nodes/", "/map/"))
    dcs = page(client, "/datacenters/")
    words = {NodeState.ONLINE: "", NodeState.SILENT: ", 4 silent", NodeState.NEVER: ", 4 never seen"}
    for node, state in zip(world.nodes, seen, strict=True):
        label = (state.value, state.label)
        assert label in shown_states(listed)
        assert label in shown_states(page(client, f"/nodes/{node.pk}/"))
        text = f"0 of 4 busy{words[state]}"
        assert f"{node.dc.name}: {text}" in drawn
        assert f"{node.dc.name}: {text}" in overview
        assert f"<dd>{text}</dd>" in page(client, f"/datacenters/{node.dc_id}/")
        for other in NodeState:
            rows = page(client, f"/nodes/?state={other.value}")
            assert (f">{node.name}</a>" in rows) == (other == state)
        for value, states in (("silent", "silent"), ("never", "never"), ("answering", "online")):
            rows = page(client, f"/datacenters/?state={value}")
            assert (f">{node.dc.name}</a>" in rows) == (states == state), (node, value)
    assert [word for _, word in shown_states(dcs)] == [
        "Online",
        "1 silent of 1 node",
        "1 never seen of 1 node",
    ]
    assert "1 silent" in overview
    assert "1 never seen" in overview


def test_the_loss_is_compared_with_the_first_of_the_run(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = world.launch()
    assert snapshot(run.pk)["first_loss"] is None
    measure(world, run, iterations=4)
    first = IterationStat.objects.filter(run=run, loss__isnull=False).order_by("iteration")[0]
    monkeypatch.setattr("webapp.live.selectors.MOST_ITERATIONS", 1)
    picture = snapshot(run.pk)
    assert len(picture["iterations"]) == 1
    assert picture["first_loss"] == {"iteration": first.iteration, "loss": first.loss}
