"""A run that is asked to end early ends after a complete iteration, the same one on every rank."""

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InputError
from engine.job.launch import LaunchSpec, single_machine
from engine.train.boundary import KEY, Boundary
from engine.transport import Endpoint
from tests.events import as_dicts
from tests.runtime.jobs import Run, job
from tests.waiting import LIMIT_S


class Store:
    """What torch.distributed's stores do, in this process."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}

    def check(self, keys: list[str]) -> bool:
        return all(key in self.values for key in keys)

    def get(self, key: str) -> bytes:
        return self.values[key]

    def set(self, key: str, value: str) -> None:
        self.values[key] = value.encode()


@given(ranks=st.integers(2, 6), steps=st.integers(1, 12), asked_at=st.integers(0, 40), data=st.data())
def test_all_ranks_end_after_the_same_iteration(ranks: int, steps: int, asked_at: int, data: Any) -> None:
    """Ranks in any order; all they rely on: nobody ends an iteration that the first has not begun."""
    store, stop_flag, lines = Store(), bytearray(1), []
    ends = [
        Boundary(store, rank=rank, stop_flag=stop_flag, leads=rank == 0, emit=as_dicts(lines))
        for rank in range(ranks)
    ]
    at, done, inside = [0] * ranks, [False] * ranks, [False] * ranks

    def began(rank: int) -> bool:
        return at[0] > at[rank] or (at[0] == at[rank] and inside[0])

    for turn in range(40 * ranks * steps):
        if turn == asked_at:
            stop_flag[0] = 1
        ready = [r for r in range(ranks) if not done[r] and (not inside[r] or began(r))]
        if not ready:
            break
        rank = data.draw(st.sampled_from(ready))
        if inside[rank]:
            inside[rank], at[rank] = False, at[rank] + 1
        elif at[rank] == steps or ends[rank].passed(at[rank]):
            done[rank] = True
        else:
            inside[rank] = True
    if not all(done):
        return  # the draw ran out of turns
    assert len(set(at)) == 1
    if lines:
        assert at[0] == min(steps, lines[0]["iteration"] + 1)
        assert int(store.get(KEY)) == lines[0]["iteration"]


@pytest.mark.long
def test_a_run_ends_at_a_boundary_with_result_and_digest(tmp_path: Path) -> None:
    run = Run(job(steps=1_000_000), str(tmp_path / "cut"))
    assert run.training.wait(LIMIT_S)
    run.group.stop_at_boundary()
    result = run.result(60)
    (events,) = run.of_kind("boundary")
    last = events["iteration"]
    assert result["steps"] == last + 1 == len(result["losses"])
    by_rank: dict[int, list[int]] = {}
    for event in run.of_kind("spans"):
        by_rank.setdefault(event["rank"], []).append(event["iteration"])
    assert by_rank == {rank: list(range(last + 1)) for rank in range(6)}
    assert {e["state"] for e in run.of_kind("rank")} == {"starting", "ready", "running", "finished"}
    whole = Run(job(steps=last + 1), str(tmp_path / "whole")).result(60)
    assert result["params_sha256"] == whole["params_sha256"]
    assert result["losses"] == whole["losses"]


@pytest.mark.long
def test_a_stop_asked_before_the_first_iteration_ends_after_it(tmp_path: Path) -> None:
    run = Run(job(steps=1_000_000), str(tmp_path))
    run.group.stop_at_boundary()
    result = run.result(60)
    assert result["steps"] == run.of_kind("boundary")[0]["iteration"] + 1


def test_endpoints_listen_in_the_range_of_their_node() -> None:
    first = _free_range(3)
    ports = (first, first + 2)
    ends = [
        Endpoint(rank=r, listen_host="127.0.0.1", secret="s", run="r", listen_ports=ports) for r in range(3)
    ]
    try:
        assert sorted(end.address[1] for end in ends) == [first, first + 1, first + 2]
        with pytest.raises(InputError, match="all are in use"):
            Endpoint(rank=3, listen_host="127.0.0.1", secret="s", run="r", listen_ports=ports)
    finally:
        for end in ends:
            end.close()
    with pytest.raises(InputError, match="its own address"):
        Endpoint(rank=0, listen_host="192.0.2.1", secret="s", run="r", listen_ports=ports)


@pytest.mark.parametrize("ports", [[0, 5], [5, 4], [1, 70000], ["1", 2]])
def test_a_spec_with_a_wrong_range_is_refused(ports: list[Any]) -> None:
    spec = single_machine(job(), run="7", log_dir="/x")
    text = spec.to_json().replace('"ports": null', f'"ports": {ports}'.replace("'", '"'))
    with pytest.raises(InputError, match="range of ports"):
        LaunchSpec.from_json(text)


def _free_range(count: int) -> int:
    import socket

    for first in range(21_000, 29_000, count):
        try:
            for port in range(first, first + count):
                socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return first
    raise AssertionError(f"no {count} free ports at {time.time()}")
