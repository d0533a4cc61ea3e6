"""A run of the whole product that recovers goes on when a rank and all ranks of a node are killed."""

import re
from collections.abc import Iterator

import psutil
import pytest

from tests.demo.harness import Client, Demo, run_ids, wait_for
from tests.demo_alone.own import (
    demo_of_its_own,
    ended,
    first_run,
    operator_of,
    progress,
    query,
    shim_of,
    state_of,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture
def demo() -> Iterator[Demo]:
    with demo_of_its_own() as demo:
        yield demo.start()


def recovering(client: Client, run: str, *, attempts: int = 20, wait_s: int = 120) -> str:
    """A clone of `run`, which is stopped, that recovers; the demo's prefill is left out, as it must be."""
    client.post(f"/runs/{run}/cancel/")
    ended(client, run, 60)
    page = client.get(f"/runs/{run}/clone/")
    form = dict(re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', page))
    chosen = re.findall(r'<select[^>]*name="(\w+)".*?<option value="([^"]*)"[^>]*selected', page, re.S)
    changed = {"prefill_checkpoint": "", "recoveries": str(attempts), "recovery_wait_s": str(wait_s)}
    client.post(f"/runs/{run}/clone/", {**form, **dict(chosen), **changed})
    launched = re.search(r"/runs/(\d+)/$", client.last_url)
    assert launched, client.last_url
    return launched[1]


def test_a_run_goes_on_by_itself(demo: Demo) -> None:
    client = operator_of(demo)
    run = recovering(client, first_run(demo, client, seconds=150))
    wait_for("it to train", lambda: progress(client, run) >= 3, 150)
    marks = "select text from jobs_runevent where run_id = %s and text like 'Recovered%%' order by seq"

    def recovered(count: int) -> None:
        wait_for(f"recovery {count}", lambda: len(query(demo, marks, int(run))) >= count, 90)

    (pid,) = query(demo, "select pid from jobs_rankstate where run_id = %s and rank = 5", int(run))[0]
    psutil.Process(pid).kill()
    recovered(1)
    reached = progress(client, run)
    wait_for("it to train on", lambda: progress(client, run) > reached + 2, 60)
    shim_of(demo, "us-central-1").kill()
    recovered(2)
    reached = progress(client, run)
    wait_for("it to train on", lambda: progress(client, run) > reached + 2, 60)
    assert state_of(client, run)["status"] == "running"
    texts = [text for (text,) in query(demo, marks, int(run))]
    assert "rank 5" in texts[0]
    assert "memory" in texts[0]
    assert "us-central" in texts[1]
    assert run_ids(client.get("/runs/"))[0] == run, "the same run, not another attempt"
    client.post(f"/runs/{run}/cancel/")
    assert ended(client, run, 60)["status"] == "cancelled"
