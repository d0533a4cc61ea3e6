"""The main job, end to end, over HTTP and WebSocket: watch the demo run, stop it, plan, launch again."""

import json
import re
from datetime import datetime
from typing import Any

import pytest

from tests.demo.harness import START_S, Client, Demo, run_ids, wait_for
from tests.waiting import LIMIT_S

pytestmark = [pytest.mark.timeout(300)]

PLAN = {
    "name": "three-dc-varuna",
    "source": "times",
    "forward_ms": "10",
    "backward_ms": "20",
    "recompute_ms": "10",
    "activation_bytes": "2500000",
    "partitions": "6",
    "microbatches": "4",
    "policy": "varuna",
    "order": "gpus",
    "objective": "throughput",
    "bill": "used",
    "layers": "6",
    "hidden": "32",
    "heads": "4",
    "seq": "32",
    "micro_batch": "1",
    "steps": "8",
    "lr": "0.003",
    "seed": "0",
}


def _state(client: Client, run: str) -> dict[str, Any]:
    state: dict[str, Any] = client.json(f"/runs/{run}/live.json")["run"]
    return state


def _ranks_heard(client: Client, run: str) -> set[int]:
    """The ranks whose spans come over the run's socket, until it has all twelve."""
    ranks: set[int] = set()
    with client.socket(f"/ws/runs/{run}/") as socket:
        while len(ranks) < 12:
            message = json.loads(socket.recv(timeout=LIMIT_S))
            ranks |= {batch["rank"] for batch in message.get("spans", []) if batch["spans"]}
    return ranks


def _stop_lasted_s(demo: Demo, client: Client, run: str) -> float:
    """Seconds from when the site kept the wish to stop `run` until it kept its end, by its own clock."""
    admin = Client(demo.url)
    admin.login("admin", "meridian-demo")
    lines = admin.get(f"/audit/export.jsonl?object_type=run&object_id={run}").splitlines()
    rows = [json.loads(line) for line in lines]
    # By the test, not by the filter: the verbs that it knows may be a minute old.
    (asked_at,) = (datetime.fromisoformat(row["at"]) for row in rows if row["verb"] == "cancel")
    state = _state(client, run)
    assert state["status"] == "cancelled", state
    return float(state["finished_at"] - asked_at.timestamp())


def test_nobody_sees_a_page_without_login(demo: Demo) -> None:
    stranger = Client(demo.url)
    stranger.get("/runs/")
    assert "/login/" in stranger.last_url
    assert "Log in" in stranger.login("operator", "wrong")
    assert "/login/" in stranger.last_url
    stranger.get("/runs/")
    assert "/login/" in stranger.last_url


def test_the_demo_run_trains_and_streams_spans(demo: Demo, operator: Client) -> None:
    run = run_ids(operator.get("/runs/"))[0]
    wait_for("an iteration of the demo run", lambda: (_state(operator, run)["iteration"] or 0) >= 2, START_S)
    with operator.socket(f"/ws/runs/{run}/") as socket:
        snapshot = json.loads(socket.recv(timeout=LIMIT_S))
        assert snapshot["type"] == "snapshot"
        assert len(snapshot["lanes"]) == 12
        assert len(snapshot["dcs"]) == 3
        seen: dict[int, set[str]] = {}
        seq = snapshot["seq"]
        while len(seen) < 12 or any(not {"F", "B"} <= ops for ops in seen.values()):
            message = json.loads(socket.recv(timeout=LIMIT_S))
            if message["type"] != "events":
                continue
            assert message["seq"] == seq + 1
            seq = message["seq"]
            for batch in message.get("spans", []):
                seen.setdefault(batch["rank"], set()).update(code[0] for code in batch["spans"])
    assert set(seen) == set(range(12))
    boundary = {lane["rank"] for lane in snapshot["lanes"] if lane["stage"] in (1, 2, 3, 4)}
    assert all({"F", "B"} <= ops for ops in seen.values())
    assert all("T" in seen[rank] for rank in boundary)


def test_stop_plan_launch_and_watch(demo: Demo, operator: Client) -> None:
    first = run_ids(operator.get("/runs/"))[0]
    operator.post(f"/runs/{first}/cancel/")
    wait_for("the demo run to stop", lambda: _state(operator, first)["finished_at"])
    assert _stop_lasted_s(demo, operator, first) > 0

    page = operator.get("/plans/new/")
    boxes = re.findall(r'name="datacenters"[^>]*value="(\d+)"|value="(\d+)"[^>]*name="datacenters"', page)
    team = re.search(r'name="team"[^>]*value="(\d+)"|<option value="(\d+)" selected', page)
    form: dict[str, Any] = {**PLAN, "datacenters": ["".join(pair) for pair in boxes]}
    if team:
        form["team"] = team[1] or team[2]
    refused = operator.post("/plans/new/", {**form, "partitions": "0"})
    assert operator.last_url.endswith("/plans/new/")
    assert "greater than or equal to 1" in refused
    operator.post("/plans/new/", form)
    plan = re.search(r"/plans/(\d+)/", operator.last_url)
    assert plan, "the plan was not made: " + refused[:2000]

    operator.post(f"/plans/{plan[1]}/launch/", {"option": "0"})
    launched = re.search(r"/runs/(\d+)/", operator.last_url)
    assert launched
    assert launched[1] != first
    ranks = _ranks_heard(operator, launched[1])
    assert ranks == set(range(12)), _state(operator, launched[1])
    done = wait_for(
        "the launched run to finish",
        lambda: (state := _state(operator, launched[1]))["finished_at"] and state,
        120,
    )
    assert done["status"] == "succeeded", done
    live = operator.json(f"/runs/{launched[1]}/live.json")
    losses = [entry["loss"] for entry in live["iterations"]]
    assert len(losses) == 8
    assert all(loss is not None for loss in losses)
