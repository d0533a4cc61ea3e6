"""The broker loses everything, is full, or stands still while the demo trains: no run is failed for it."""

import time

import psutil
import pytest
import redis

from tests.demo.harness import Client, Demo, wait_for
from tests.demo_alone.own import complete, ended, query, ready, server_pid, state_of, trains_on

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

FULL_S = 40  # as long as an operator of the day of attack left it so; four times what makes a node silent


def heard_since(demo: Demo, moment: float) -> bool:
    """Whether a heartbeat of every node that has joined came after `moment`."""
    sql = "select bool_and(last_seen > to_timestamp(%s)) from inventory_node where acl_sha256 <> ''"
    return bool(query(demo, sql, moment)[0][0])


def test_a_run_outlives_a_full_broker(shared: Demo, client: Client, run: str, broker: redis.Redis) -> None:
    broker.config_set("maxmemory", 1)
    try:
        until = time.monotonic() + FULL_S
        while time.monotonic() < until:
            for page in ("/", "/runs/", f"/runs/{run}/", "/nodes/"):
                client.get(page)  # raises for a 500
            time.sleep(2)
        wait_for("the page's line", lambda: "The broker is full" in client.get("/"), 60)
        assert not ready(client)
    finally:
        broker.config_set("maxmemory", 2**30)
    trains_on(client, run)
    wait_for("/readyz", lambda: ready(client), 60)
    assert state_of(client, run)["status"] == "running"
    complete(shared, run)


def test_a_run_outlives_a_broker_that_stands_still(shared: Demo, client: Client, run: str) -> None:
    line_count = len(shared.lines)
    valkey = psutil.Process(server_pid(shared, "valkey"))
    valkey.suspend()
    try:
        wait_for(
            "the supervisor's line",
            lambda: any("valkey has not answered" in line for line in shared.lines[line_count:]),
            120,
        )
    finally:
        valkey.resume()
    trains_on(client, run)
    assert state_of(client, run)["status"] == "running"
    complete(shared, run)


def test_a_run_outlives_a_broker_that_lost_its_data_and_its_users(
    shared: Demo, client: Client, run: str, broker: redis.Redis
) -> None:
    broker.flushall()
    for user in map(str, broker.acl_users()):
        if user.startswith("node-"):
            broker.acl_deluser(user)
    moment = time.time()
    wait_for("every node to be heard again", lambda: heard_since(shared, moment), 120)
    trains_on(client, run)
    assert state_of(client, run)["status"] == "running"
    wait_for("/readyz", lambda: ready(client), 60)
    client.post(f"/runs/{run}/cancel/")  # and nodes hear what they are told
    assert ended(client, run, 120)["status"] == "cancelled"
