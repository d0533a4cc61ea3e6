"""The one demo of this folder, and its run, whatever the test before did to them."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import psycopg
import pytest
import redis

from tests.demo.harness import Client, Demo, run_ids, wait_for
from tests.demo_alone.own import (
    RANKS,
    demo_of_its_own,
    first_run,
    gpus_held,
    operator_of,
    query,
    rank_processes,
    ready,
    relaunched,
    state_of,
)

OVER = ("succeeded", "failed", "cancelled")


class OneDemo:
    """A demo that runs, and another one in its place where a test failed or left it broken."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._demo: Demo | None = None
        self._failures = 0

    def whole(self, failures: int) -> Demo:
        """The demo once nothing of what befell it is left; a new one if that takes longer than LIMIT_S.

        failures : tests that have failed so far. One more, and nobody knows how it left the demo.
        """
        if failures > self._failures:
            self._failures = failures
            self.stop()
        if (demo := self._demo) is not None:
            try:
                wait_for("the demo to be whole", lambda: _is_whole(demo))
            except AssertionError:
                self.stop()
        if self._demo is None:
            self._demo = self._stack.enter_context(demo_of_its_own()).start()
        return self._demo

    def stop(self) -> None:
        self._demo = None
        self._stack.close()


def _is_whole(demo: Demo) -> bool:
    """Whether the site is ready, nodes were heard of lately, and a run that trains alone holds GPUs."""
    if demo.process is None or demo.process.poll() is not None:
        return False
    try:
        return ready(Client(demo.url)) and _runs_well(demo)
    except psycopg.Error:  # no database, or none yet
        return False


def _runs_well(demo: Demo) -> bool:
    heard = "select bool_and(last_seen > now() - interval '8 s') from inventory_node where acl_sha256 <> ''"
    status = "select status from jobs_run order by id desc limit 1"
    (status_of_newest,) = query(demo, status)[0]
    wanted = {"running": RANKS, **dict.fromkeys(OVER, 0)}.get(status_of_newest)
    return query(demo, heard) == [(True,)] and gpus_held(demo) == wanted == len(rank_processes(demo))


@pytest.fixture(scope="package")
def one_demo() -> Iterator[OneDemo]:
    demo = OneDemo()
    yield demo
    demo.stop()


@pytest.fixture
def shared(one_demo: OneDemo, request: pytest.FixtureRequest) -> Demo:
    return one_demo.whole(request.session.testsfailed)


@pytest.fixture
def client(shared: Demo) -> Client:
    return operator_of(shared)


@pytest.fixture
def run(shared: Demo, client: Client) -> str:
    """A run that trains: the demo's own, or one launched again from its plan after a test ended it."""
    newest = run_ids(client.get("/runs/"))[0]
    if state_of(client, newest)["finished_at"]:
        relaunched(client)
    return first_run(shared, client)


@pytest.fixture
def broker(shared: Demo) -> Iterator[redis.Redis]:
    state = json.loads((shared.var / "servers.json").read_text())
    with redis.Redis.from_url(state["valkey"]["url"], decode_responses=True) as admin:
        yield admin
