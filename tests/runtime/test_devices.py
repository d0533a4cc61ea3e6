"""A placement by device: where each rank runs, what its hops are, and sums over replicas in several DCs."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cluster.all_reduce import ring_s
from engine.job.all_reduce import stage_parameters
from engine.job.launch import single_machine
from engine.job.predict import predict
from engine.train.ring import Ring
from tests.runtime.cells import LONGEST_WAIT_S, Cell, Office, far, whole
from tests.runtime.jobs import Run, job
from tests.runtime.played import PlayedEndpoint
from tests.runtime.test_training_equals_single import reference

MIXED = {"pipelines": [[0, 1, 4], [5, 2, 3]]}  # devices 0 to 3 are north, 4 and 5 south


def mixed(**changes: Any) -> Any:
    return job(devices=MIXED, dc_of_stage=None, policy="1f1b", **changes)


def test_ranks_run_where_the_devices_are() -> None:
    ranks = single_machine(mixed(), run="x", log_dir="").ranks
    assert [rank.dc_name for rank in ranks] == ["north", "north", "south", "south", "north", "north"]
    assert len({rank.node for rank in ranks}) == 6


def test_hops_are_those_of_each_pipeline_and_the_schedule_sees_the_slowest() -> None:
    of = mixed()
    assert of.network(0, pipeline=0) is None
    assert of.network(1, pipeline=1) is None
    assert of.network(1, pipeline=0) is not None
    assert of.network(0, pipeline=1) is not None
    assert of.scenario.wan_hops == (0, 1)
    alike = job(devices={"pipelines": [[0, 1, 4], [2, 3, 5]]}, dc_of_stage=None, policy="1f1b")
    assert alike.scenario == job(policy="1f1b").scenario
    assert predict(of).iteration_s > predict(alike).iteration_s


def test_gradients_are_those_of_one_pass() -> None:
    of = mixed(dtype="fp64")
    assert far(Cell(of).run(), whole(of)) < 1e-9


REPLICAS = {"pipelines": [[0], [4]]}  # one whole model in the north, one in the south


def test_replicas_without_a_pipeline_train_as_one_process() -> None:
    """Data parallelism across data centres: one stage, and gradients alone cross the WAN."""
    of = job(
        devices=REPLICAS, dc_of_stage=None, stages=1, policy="1f1b", microbatches=2, steps=2, dtype="fp64"
    )
    assert [rank.dc_name for rank in single_machine(of, run="x", log_dir="").ranks] == ["north", "south"]
    assert far(Cell(of).run(), whole(of)) < 1e-9


@settings(max_examples=25, deadline=None)
@given(replicas=st.integers(2, 5), sizes=st.lists(st.integers(1, 17), min_size=1, max_size=3))
def test_a_ring_sums_to_the_same_bits_everywhere(replicas: int, sizes: list[int]) -> None:
    office, generator = Office(), torch.Generator().manual_seed(1)
    buckets = [[torch.randn(size, generator=generator) for size in sizes] for _ in range(replicas)]
    sums = [torch.stack([own[i] for own in buckets]).double().sum(0) for i in range(len(sizes))]
    endpoints = [PlayedEndpoint(office, rank) for rank in range(replicas)]
    rings = [Ring(endpoint, range(replicas)) for endpoint in endpoints]  # type: ignore[arg-type]

    def reduce(rank: int) -> None:
        for under_way in [rings[rank].allreduce([bucket]) for bucket in buckets[rank]]:
            under_way.wait()

    with ThreadPoolExecutor(replicas) as pool:
        for done in [pool.submit(reduce, rank) for rank in range(replicas)]:
            done.result(LONGEST_WAIT_S)
    assert office.empty()
    assert [ring.sent_bytes.total() for ring in rings] == [
        endpoint.sent_bytes.total() for endpoint in endpoints
    ]
    assert sum(ring.sent_bytes.total() for ring in rings) == 2 * (replicas - 1) * 4 * sum(sizes)
    for i, expected in enumerate(sums):
        assert buckets[0][i].tolist() == pytest.approx(expected.tolist(), rel=1e-5, abs=1e-5)
        assert all(torch.equal(own[i], buckets[0][i]) for own in buckets)


@given(
    edges=st.lists(st.tuples(st.floats(0, 1), st.floats(1e-6, 1)), min_size=2, max_size=6),
)
def test_a_ring_takes_as_long_as_its_messages_one_by_one(edges: list[tuple[float, float]]) -> None:
    n = len(edges)
    free = [0.0] * n
    for _ in range(2 * (n - 1)):
        sent = [free[i] + edges[i][1] for i in range(n)]
        arrives = [sent[i - 1] + edges[i - 1][0] for i in range(n)]
        free = [max(mine) for mine in zip(sent, arrives, strict=True)]
    latency, transfer = (np.array(column) for column in zip(*edges, strict=True))
    seconds = ring_s(latency, transfer)
    assert seconds == pytest.approx(max(free))
    # Every link carries all steps, one after the other, and somebody waits for the last of them.
    assert seconds >= max(late + 2 * (n - 1) * takes for late, takes in edges) - 1e-9
    assert seconds <= sum(max(column) for column in (latency, transfer)) * 2 * (n - 1) + 1e-9


def test_gradients_that_cross_the_wan_are_predicted_to_take_its_time() -> None:
    of = mixed()  # its first and last stage have replicas in both data centres
    link = of.between(0, 1)
    assert link is not None
    crossing = [2 * link.latency_ms / 1e3 < reduce_s for reduce_s in predict(of).allreduce_s]
    assert crossing == [True, False, True]


def test_gradients_that_cross_the_wan_are_in_the_result_with_their_cost(tmp_path: Path) -> None:
    link = {"between": ["north", "south"], "latency_ms": 2, "bandwidth_gbps": 1, "egress_price_per_gb": 0.5}
    devices = {"pipelines": [[0], [4]]}
    of = job(devices=devices, dc_of_stage=None, stages=1, policy="1f1b", links=[link], steps=2)
    result = Run(of, str(tmp_path)).result()
    assert result["losses"] == pytest.approx(reference(of)[0], rel=1e-5)  # those of one process
    assert [(way["from"], way["to"]) for way in result["wan"]] == [("north", "south"), ("south", "north")]
    # In a ring of two each hands on both halves: fp32 gradients, the loss, and two times of each replica.
    assert {way["bytes"] for way in result["wan"]} == {2 * 4 * (stage_parameters(of, 0) + 5)}
    for way in result["wan"]:
        assert way["bytes"] < way["egress_bytes"] < 1.2 * way["bytes"]
        assert way["egress_cost"] == pytest.approx(0.5 * way["egress_bytes"] / 1e9)
        assert (way["from_stage"], way["to_stage"], way["gbps"]) == (0, 0, None)
