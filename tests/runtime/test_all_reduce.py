"""Sums over replicas by messages: against torch's all-reduce, and byte by byte; which one a job takes."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed import HashStore, ProcessGroupGloo

from engine.cluster.all_reduce import AllReduce, sent_shares
from engine.errors import InputError
from engine.inputs import parse
from engine.job.all_reduce import all_reduces, domain_of, stage_parameters, sum_of_stage_s
from engine.job.changed import changed
from engine.job.job import TrainJob
from engine.train.ring import sums_of
from tests.runtime.cells import LONGEST_WAIT_S, Office
from tests.runtime.jobs import Run, job
from tests.runtime.machines import Machines
from tests.runtime.played import PlayedEndpoint

KINDS: list[AllReduce] = ["ring", "hierarchical", "sharded"]
GRIDS = [(2, 2), (3, 2), (2, 3), (2, 4)]
# Four replicas of the only stage, two in each data centre.
APART = {"pipelines": [[0], [1], [4], [5]]}


def on_all(n: int, do: Any) -> list[Any]:
    with ThreadPoolExecutor(n) as pool:
        return [done.result(LONGEST_WAIT_S) for done in [pool.submit(do, rank) for rank in range(n)]]


def by_torch(buffers: list[torch.Tensor]) -> torch.Tensor:
    """What gloo's all-reduce makes of the buffers, on a thread for each rank."""
    store, copies = HashStore(), [buffer.clone() for buffer in buffers]

    def reduce(rank: int) -> None:
        group = ProcessGroupGloo(store, rank, len(copies), timedelta(seconds=LONGEST_WAIT_S))
        group.allreduce([copies[rank]]).wait()

    on_all(len(copies), reduce)
    return copies[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("x", "y"), GRIDS)
def test_sums_are_torchs_and_move_the_bytes_of_the_closed_form(kind: AllReduce, x: int, y: int) -> None:
    n, office = x * y, Office()
    generator = torch.Generator().manual_seed(x + 10 * y)
    # The second buffer is not to be cut evenly, the third has fewer numbers than there are ranks.
    sizes = [4 * n, 4 * n + 1, n - 1]
    own = [[torch.randn(size, generator=generator, dtype=torch.float64) for size in sizes] for _ in range(n)]
    before = [[buffer.clone() for buffer in buffers] for buffers in own]
    endpoints = [PlayedEndpoint(office, rank) for rank in range(n)]
    sums = [sums_of(kind, endpoint, range(n), x) for endpoint in endpoints]  # type: ignore[arg-type]

    def reduce(rank: int, i: int) -> None:
        sums[rank].allreduce([own[rank][i]]).wait()

    for i in range(len(sizes)):
        on_all(n, lambda rank, i=i: reduce(rank, i))
        if i == 0:
            sent = np.array([[endpoint.sent_bytes[other] for other in range(n)] for endpoint in endpoints])
            assert sent.tolist() == (sent_shares(kind, n, x) * 8 * sizes[0]).tolist()
        expected = by_torch([buffers[i] for buffers in before])
        assert own[0][i].tolist() == pytest.approx(expected.tolist(), rel=1e-12, abs=1e-12)
        assert all(torch.equal(buffers[i], own[0][i]) for buffers in own)
    assert office.empty()
    assert [one.sent_bytes for one in sums] == [endpoint.sent_bytes for endpoint in endpoints]


def test_shards_are_summed_in_the_order_of_the_ranks() -> None:
    office, values = Office(), [[1e16, 1.0], [1.0, 1e16], [-1e16, -1e16]]
    buffers = [torch.tensor(row, dtype=torch.float64) for row in values]
    sums = [sums_of("sharded", PlayedEndpoint(office, rank), range(3), 1) for rank in range(3)]  # type: ignore[arg-type]
    on_all(3, lambda rank: sums[rank].allreduce([buffers[rank]]).wait())
    in_order = [(a + b) + c for a, b, c in zip(*values, strict=True)]
    assert [buffer.tolist() for buffer in buffers] == [in_order] * 3


def apart(**changes: Any) -> TrainJob:
    values = {"devices": APART, "dc_of_stage": None, "stages": 1, "pipelines": 4, "policy": "1f1b"}
    return job(**{**values, "steps": 2, "dtype": "fp64", **changes})


@pytest.fixture(scope="module")
def by_ring(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return Run(apart(), str(tmp_path_factory.mktemp("ring"))).result()


@pytest.mark.parametrize("kind", ["hierarchical", "sharded"])
def test_a_run_sums_as_its_job_says(kind: AllReduce, by_ring: dict[str, Any], tmp_path: Path) -> None:
    of = apart(all_reduce=kind)
    result = Run(of, str(tmp_path)).result()
    assert (by_ring["all_reduce"], result["all_reduce"]) == (["ring"], [kind])
    assert result["losses"] == pytest.approx(by_ring["losses"], rel=1e-9)
    numbers = stage_parameters(of, 0) + 1 + 2 * 4  # the loss and two times of each replica ride along
    shares = sent_shares(kind, 4, 2)
    crossing = float(shares[:2, 2:].sum())  # from north to south
    for way in result["wan"]:
        assert way["bytes"] == pytest.approx(2 * 8 * numbers * crossing, rel=1e-3)  # two steps, fp64


def test_auto_takes_the_sum_that_is_predicted_to_be_fastest() -> None:
    far = {"between": ["north", "south"], "latency_ms": 80, "bandwidth_gbps": 100}
    narrow = {"between": ["north", "south"], "latency_ms": 0, "bandwidth_gbps": 0.01}
    chosen = set()
    for link in (far, narrow):
        seconds = {kind: sum_of_stage_s(apart(links=[link], all_reduce=kind), 0) for kind in KINDS}
        auto = apart(links=[link], all_reduce="auto")
        assert all_reduces(auto) == [min(KINDS, key=seconds.__getitem__)]
        assert sum_of_stage_s(auto, 0) == min(seconds.values())
        chosen |= set(all_reduces(auto))
    assert chosen == {"sharded"}  # two exchanges over the link; each link carries a quarter, twice


def test_a_narrow_port_makes_the_hierarchical_sum_the_fastest() -> None:
    """Two replicas of a node share half of what else passes its port: 2 (n − 1) / n · D."""
    link = {"between": ["north", "south"], "latency_ms": 0, "bandwidth_gbps": 1}
    big = {"layers": 2, "hidden": 256, "heads": 2, "seq": 16}
    values: dict[str, Any] = {"links": [link], "model": big}
    wide = [{"name": name, "gpus": 4, "hb_domain": 2} for name in ("north", "south")]
    narrow = [{**site, "port_gbps": 0.5} for site in wide]
    assert all_reduces(apart(**values, all_reduce="auto", datacenters=wide)) == ["sharded"]
    assert all_reduces(apart(**values, all_reduce="auto", datacenters=narrow)) == ["hierarchical"]
    of = apart(**values, all_reduce="ring", datacenters=[{**site, "hb_domain": None} for site in narrow])
    nbytes = 8 * stage_parameters(of, 0)  # fp64
    assert sum_of_stage_s(of, 0) >= 2 * 3 / 4 * nbytes / (0.5e9 / 8)


@pytest.mark.parametrize("replicas", [2, 3, 5, 6, 7])
def test_auto_leaves_replicas_in_one_data_centre_to_torch(replicas: int) -> None:
    """Messages of ours would move as many bytes, through host memory."""
    of = job(
        datacenters=[{"name": "north", "gpus": 3 * replicas, "hb_domain": 2}],
        links=None,
        dc_of_stage=None,
        pipelines=replicas,
        policy="1f1b",
        all_reduce="auto",
    )
    assert all_reduces(of) == ["ring"] * 3


def test_replicas_that_make_no_grid_sum_along_a_ring() -> None:
    of = apart(all_reduce="hierarchical", devices={"pipelines": [[0], [1], [4]]}, pipelines=3)
    assert all_reduces(of) == ["ring"]
    assert all_reduces(apart(all_reduce="hierarchical")) == ["hierarchical"]


def test_an_hb_domain_is_a_domain_inside_a_data_centre() -> None:
    sites = [{"name": "north", "gpus": 12, "hb_domain": 2}, {"name": "south", "gpus": 2}]
    of = job(datacenters=sites, dc_of_stage=None, pipelines=4, policy="1f1b", all_reduce="hierarchical")
    assert all_reduces(of) == ["hierarchical"] * 3
    whole = job(
        datacenters=[{**sites[0], "hb_domain": 4}],
        links=None,
        dc_of_stage=None,
        pipelines=4,
        policy="1f1b",
        all_reduce="hierarchical",
    )
    assert all_reduces(whole) == ["ring"] * 3  # all are in one domain


@pytest.mark.parametrize(
    ("changes", "allowed"),
    [
        ({"cell.all_reduce": "tree"}, "ring"),
        ({"cell.all_reduce": "sharded", "cell.devices": None, "cell.tp": 2}, "with tp"),
    ],
)
def test_what_a_job_cannot_do_is_refused_by_its_field(changes: dict[str, Any], allowed: str) -> None:
    document = changed(apart().to_document(), changes)
    with pytest.raises(InputError) as refused:
        parse(TrainJob, document)
    assert refused.value.field == "cell.all_reduce"
    assert allowed in refused.value.allowed


def test_a_sharded_sum_needs_a_link_between_every_two_data_centres() -> None:
    sites = [{"name": name, "gpus": 1} for name in ("a", "b", "c", "d")]
    around = [
        {"between": [one, other], "latency_ms": 1, "bandwidth_gbps": 1}
        for one, other in (("a", "b"), ("b", "c"), ("c", "d"), ("d", "a"))
    ]
    values = {
        "datacenters": sites,
        "links": around,
        "devices": {"pipelines": [[0], [1], [2], [3]]},
        "dc_of_stage": None,
        "stages": 1,
        "pipelines": 4,
        "policy": "1f1b",
    }
    assert all_reduces(job(**values, all_reduce="auto")) == ["ring"]
    with pytest.raises(InputError, match="no link joins"):
        job(**values, all_reduce="sharded")


@pytest.mark.parametrize(
    ("north", "south", "hb_domain", "domain"),
    [
        (3, 3, None, 3),
        (4, 2, None, 2),
        (8, 0, 4, 4),
        (9, 0, 4, 1),  # nodes of 4, 4 and 1 GPUs: no three hold three each
        (9, 0, 3, 3),
        (4, 4, 2, 2),
        (3, 0, 8, 3),
        (2, 1, None, 1),
    ],
)
def test_domains_are_all_of_one_size(north: int, south: int, hb_domain: int | None, domain: int) -> None:
    sites = [{"name": "north", "gpus": north, "hb_domain": hb_domain}, {"name": "south", "gpus": south}]
    of = apart(
        datacenters=sites, devices={"pipelines": [[d] for d in range(north + south)]}, pipelines=north + south
    )
    assert domain_of(of, 0) == domain


@pytest.mark.long
@pytest.mark.parametrize("kind", ["hierarchical", "sharded"])
def test_a_killed_rank_changes_no_bit_of_the_sums(kind: AllReduce, tmp_path: Path) -> None:
    whole = Run(apart(all_reduce=kind, steps=12), str(tmp_path / "whole")).result()
    with Machines(apart(all_reduce=kind, steps=12, recovery={}), tmp_path / "killed", [range(4)]) as run:
        run.at_step(3)
        run.kill_rank(2)
        result = run.result()
    assert [row["failed"] for row in result["recoveries"]] == ["rank"]
    assert result["params_sha256"] == whole["params_sha256"]
    assert result["losses"] == whole["losses"]
