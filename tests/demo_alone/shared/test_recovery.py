"""A run of the whole product that recovers goes on when a rank and all ranks of a node are killed."""

import psutil
import pytest

from tests.demo.harness import Client, Demo, run_ids, wait_for
from tests.demo_alone.own import ended, progress, query, recovering, shim_of, state_of

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def test_a_run_goes_on_by_itself(shared: Demo, client: Client, run: str) -> None:
    run = recovering(client, run)
    wait_for("it to train", lambda: progress(client, run) >= 3, 150)
    marks = "select text from jobs_runevent where run_id = %s and text like 'Recovered%%' order by seq"

    def recovered(count: int) -> None:
        wait_for(f"recovery {count}", lambda: len(query(shared, marks, int(run))) >= count, 90)

    (pid,) = query(shared, "select pid from jobs_rankstate where run_id = %s and rank = 5", int(run))[0]
    psutil.Process(pid).kill()
    recovered(1)
    reached = progress(client, run)
    wait_for("it to train on", lambda: progress(client, run) > reached + 2, 60)
    shim_of(shared, "us-central-1").kill()
    recovered(2)
    reached = progress(client, run)
    wait_for("it to train on", lambda: progress(client, run) > reached + 2, 60)
    assert state_of(client, run)["status"] == "running"
    texts = [text for (text,) in query(shared, marks, int(run))]
    assert "rank 5" in texts[0]
    assert "memory" in texts[0]
    assert "us-central" in texts[1]
    assert run_ids(client.get("/runs/"))[0] == run, "the same run, not another attempt"
    client.post(f"/runs/{run}/cancel/")
    assert ended(client, run, 60)["status"] == "cancelled"
