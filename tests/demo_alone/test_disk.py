"""A disk that fills while a run trains: it is said, nothing is given up, and nothing is missing later."""

import json
import time
import urllib.error
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.demo.harness import Client, Demo, wait_for
from tests.demo_alone.own import (
    all_free,
    complete,
    ended,
    fill,
    first_run,
    operator_of,
    progress,
    query,
    small_disk,
    state_of,
    trains_on,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

FULL_S = 30


@pytest.fixture
def disk() -> Iterator[Path]:
    with small_disk(megabytes=700) as folder:
        if folder is None:
            pytest.skip("this account may not mount a file system: A FULL DISK IS NOT TESTED")
        yield folder


def readiness(client: Client) -> dict[str, Any]:
    try:
        answer_text = client.get("/readyz")
    except urllib.error.HTTPError as answer:
        answer_text = answer.read().decode()
    checks: dict[str, Any] = json.loads(answer_text)["checks"]
    return checks


def test_a_disk_that_fills_while_a_run_trains(disk: Path) -> None:
    demo = Demo(disk / "var")
    big = disk / "big"
    try:
        demo.start()
        client = operator_of(demo)
        run = first_run(demo, client)
        acknowledged = query(demo, "select iteration, loss from live_iterationstat where loss is not null")
        fill(big)
        full_from = time.time()
        wait_for(
            "the supervisor's line", lambda: any("disk full: 0 MB free" in one for one in demo.lines), 60
        )
        assert not readiness(client)["disk"]["ok"]
        while time.time() < full_from + FULL_S:
            assert demo.process
            assert demo.process.poll() is None
            time.sleep(1)
        full_to = time.time()
        big.unlink()
        wait_for(
            "the supervisor to go on", lambda: any("free again: going on" in one for one in demo.lines), 30
        )
        wait_for("the run", lambda: progress(client, run) > 0, 60)
        trains_on(client, run)
        complete(demo, run, seconds=120)
        rows_after = query(demo, "select iteration, loss from live_iterationstat where loss is not null")
        assert set(acknowledged) <= set(rows_after)
        trained = query(
            demo,
            "select count(*) from live_iterationstat where run_id = %s and start between %s and %s",
            int(run),
            full_from,
            full_to,
        )
        assert trained[0][0] >= 5, "the ranks trained on meanwhile"
        assert state_of(client, run)["status"] == "running"
        # An agent that cannot write says so once, not at every event.
        assert sum("events cannot be kept on disk" in one for one in demo.lines) <= 10
        client.post(f"/runs/{run}/cancel/")
        assert ended(client, run, 60)["status"] == "cancelled"
        all_free(demo)
    finally:
        big.unlink(missing_ok=True)
        demo.stop()
