"""Replicas of a domain on one node: the packing, its room, and the bytes that leave a node."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.cluster.all_reduce import Nodes, sent_shares
from engine.job.domains import domains_in, pack
from engine.job.launch import LaunchSpec, single_machine
from engine.job.stage_ring import stage_ring, stage_rings
from engine.train.ring import sums_of
from tests.runtime.cells import LONGEST_WAIT_S, Office
from tests.runtime.jobs import job
from tests.runtime.played import PlayedEndpoint

ROOMS = st.lists(st.integers(0, 9), min_size=1, max_size=5)


@given(rooms=ROOMS, x=st.integers(1, 5), data=st.data())
def test_as_many_domains_as_the_nodes_hold_are_whole(rooms: list[int], x: int, data: st.DataObject) -> None:
    """A node with k free GPUs holds k // x domains, whatever else is on it."""
    count = data.draw(st.integers(0, sum(rooms) // x))
    domains = [[(i, j) for j in range(x)] for i in range(count)]
    node_of = pack(domains, dict(enumerate(rooms)))
    assert set(node_of) == {member for domain in domains for member in domain}
    used = Counter(node_of.values())
    assert all(used[node] <= rooms[node] for node in used)
    whole = sum(len({node_of[member] for member in domain}) == 1 for domain in domains)
    assert whole == min(count, sum(room // x for room in rooms))


@given(gpus=st.integers(1, 30), size=st.integers(1, 9), x=st.integers(1, 6), count=st.integers(1, 8))
def test_room_is_what_packing_finds(gpus: int, size: int, x: int, count: int) -> None:
    if count * x > gpus:
        return
    rooms = [min(size, gpus - first) for first in range(0, gpus, size)]
    node_of = pack([[(i, j) for j in range(x)] for i in range(count)], dict(enumerate(rooms)))
    whole = all(len({node_of[i, j] for j in range(x)}) == 1 for i in range(count))
    assert Nodes(gpus=gpus, gpus_per_node=size, replicas=count * x).hold(x) == whole


def spec_of(pipelines: int, gpus: int, hb_domain: int, **changes: Any) -> LaunchSpec:
    """One data centre; three stages."""
    site = {"name": "north", "gpus": gpus, "hb_domain": hb_domain}
    values = {"links": None, "dc_of_stage": None, "policy": "1f1b", "all_reduce": "hierarchical", **changes}
    return single_machine(job(datacenters=[site], pipelines=pipelines, **values), run="x", log_dir="")


@pytest.mark.parametrize(
    ("pipelines", "gpus", "hb_domain", "x"),
    [(4, 12, 4, 4), (8, 24, 4, 4), (4, 12, 2, 2), (6, 24, 8, 6), (6, 24, 4, 3), (6, 20, 4, 2)],
)
def test_the_bytes_that_leave_a_node_are_those_of_the_closed_form(
    pipelines: int, gpus: int, hb_domain: int, x: int
) -> None:
    """Of each domain on it a node sends 2 (y − 1) / y · D, one y-th by each of x rails, twice (Eq. 1)."""
    spec = spec_of(pipelines, gpus, hb_domain)
    y, floats = pipelines // x, 4 * pipelines
    leaving: Counter[str] = Counter()
    domains: Counter[str] = Counter()
    for ring in stage_rings(spec):
        assert (ring.kind, ring.domain) == (("hierarchical", x) if y > 1 else ("ring", x))
        if ring.kind == "ring":
            continue
        node = [a.node for a in ring.ranks]
        domains.update(node[::x])
        assert all(len(set(node[i : i + x])) == 1 for i in range(0, pipelines, x))
        sent = summed(ring.kind, pipelines, x, floats)
        for i, j in zip(*np.nonzero(sent), strict=True):
            if node[i] != node[j]:
                leaving[node[i]] += int(sent[i, j])
    together = {name for name, count in domains.items() if count > 1}
    for name in domains.keys() - together:
        assert leaving[name] == domains[name] * 2 * (y - 1) / y * 8 * floats
    for name in together:  # of two domains of a stage on one node, a part stays there
        assert leaving[name] <= domains[name] * 2 * (y - 1) / y * 8 * floats


def summed(kind: Any, n: int, x: int, floats: int) -> Any:
    """Bytes that each rank sends to each other one in a real sum of so many numbers."""
    office = Office()
    endpoints = [PlayedEndpoint(office, rank) for rank in range(n)]
    sums = [sums_of(kind, endpoint, range(n), x) for endpoint in endpoints]  # type: ignore[arg-type]
    buffers = [torch.ones(floats, dtype=torch.float64) for _ in range(n)]
    with ThreadPoolExecutor(n) as pool:
        under_way = [pool.submit(lambda r=r: sums[r].allreduce([buffers[r]]).wait()) for r in range(n)]
        for one in under_way:
            one.result(LONGEST_WAIT_S)
    assert all(buffer.tolist() == [n] * floats for buffer in buffers)
    sent = np.array([[endpoint.sent_bytes[other] for other in range(n)] for endpoint in endpoints])
    assert sent.tolist() == (sent_shares(kind, n, x) * 8 * floats).tolist()
    return sent


def test_domains_are_those_of_the_nodes_not_of_the_pipelines() -> None:
    """Pipelines 0 and 2 on one node, 1 and 3 on another."""
    spec = spec_of(4, 12, 2)
    ranks = tuple(replace(a, node=f"node-{a.stage}-{a.pipeline % 2}") for a in spec.ranks)
    ring = stage_ring(replace(spec, ranks=ranks), 1)
    assert ring.domain == 2
    assert [a.pipeline for a in ring.ranks] == [0, 2, 1, 3]


@pytest.mark.parametrize("nodes", [["a", "a", "a", "b"], ["a", "b", "c", "d"]])
def test_nodes_that_allow_no_grid_sum_along_a_ring(nodes: list[str]) -> None:
    spec = spec_of(4, 12, 2)
    ranks = tuple(replace(a, node=f"{a.stage}-{nodes[a.pipeline]}") for a in spec.ranks)
    ring = stage_ring(replace(spec, ranks=ranks), 0)
    assert ring.kind == "ring"
    assert [a.pipeline for a in ring.ranks] == [0, 1, 2, 3]


def test_every_replica_is_in_one_domain() -> None:
    of = spec_of(6, 20, 4).job
    domains = domains_in(of, 0)
    assert sorted(member for domain in domains for member in domain) == [
        (p, s) for p in range(6) for s in range(3)
    ]
    assert {len(domain) for domain in domains} == {2}
