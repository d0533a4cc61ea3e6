"""Replicas of a domain get GPUs of one node at a launch, as far as nodes have room."""

from collections import Counter

import pytest

from engine.job.domains import domains_in
from engine.job.job import TrainJob
from engine.job.shape import shape_of
from tests.runtime.jobs import job
from webapp.inventory.models import Node
from webapp.jobs.allocate import _gpus_by_domain
from webapp.jobs.gpu_inventory import Gpu


def on_rails(pipelines: int, gpus: int, hb_domain: int) -> TrainJob:
    sites = [{"name": "north", "gpus": gpus, "hb_domain": hb_domain}, {"name": "south", "gpus": pipelines}]
    return job(datacenters=sites, pipelines=pipelines, policy="1f1b", all_reduce="hierarchical")


def idle(rooms: list[int], south: int) -> dict[str, list[Gpu]]:
    """Idle GPUs of nodes with so much room, listed as the inventory lists them."""
    nodes = [(Node(pk=i, name=f"north-{i}"), room) for i, room in enumerate(rooms)]
    return {
        "north": [(node, gpu) for node, room in nodes for gpu in range(room)],
        "south": [(Node(pk=99, name="south"), gpu) for gpu in range(south)],
    }


@pytest.mark.parametrize(
    ("pipelines", "gpus", "hb_domain", "rooms"),
    [(4, 8, 4, [4, 4]), (4, 12, 2, [1, 2, 2, 3, 2]), (6, 18, 4, [4, 4, 3, 3]), (4, 8, 4, [3, 4, 2, 4])],
)
def test_the_replicas_of_a_domain_are_on_one_node(
    pipelines: int, gpus: int, hb_domain: int, rooms: list[int]
) -> None:
    """Two of the three stages are in the north."""
    of = on_rails(pipelines, gpus, hb_domain)
    at = _gpus_by_domain(of.to_document(), shape_of(of.to_document()), idle(rooms, pipelines))
    assert sorted(at) == list(range(3 * pipelines))
    assert len({(node.pk, gpu) for node, gpu in at.values()}) == 3 * pipelines, "a GPU for each rank"
    domains = domains_in(of, 0)
    assert max(map(len, domains)) > 1
    for domain in domains:
        assert len({at[pipeline * 3 + stage][0].pk for pipeline, stage in domain}) == 1


def test_without_room_a_domain_is_split_and_every_rank_has_a_gpu() -> None:
    of = on_rails(4, 8, 4)
    at = _gpus_by_domain(of.to_document(), shape_of(of.to_document()), idle([3, 3, 2], 4))
    used = Counter(node.name for node, _ in at.values())
    assert used == {"north-0": 3, "north-1": 3, "north-2": 2, "south": 4}
