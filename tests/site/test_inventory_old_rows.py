"""Migration 0003 of the inventory on rows of before: every node gets ports, apart from others of its host.

The ranges are worked out again here by hand for the cases that matter: a small and a large node of one host,
nodes of different hosts, and more nodes than a host has ports for.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

BEFORE, AFTER = [("inventory", "0002_pools")], [("inventory", "0003_nodes_join_drain")]


def migrate(to: list[tuple[str, str]]) -> Any:
    """Bring the database to that state; returns the models of then."""
    executor = MigrationExecutor(connection)
    executor.migrate(to)
    return MigrationExecutor(connection).loader.project_state(to).apps


@pytest.fixture
def old(transactional_db: None) -> Iterator[Any]:
    """The models before the migration; afterwards the database is as it was."""
    leaves = MigrationExecutor(connection).loader.graph.leaf_nodes()
    yield migrate(BEFORE)
    migrate(leaves)


def make_nodes(old: Any, rows: list[tuple[str, int]]) -> None:
    """Nodes (host, GPUs) as they were before."""
    team = old.get_model("accounts", "Team").objects.create(name="Old")
    dc = old.get_model("inventory", "DataCenter").objects.create(team=team, name="old")
    pool = old.get_model("inventory", "GpuPool").objects.create(dc=dc, gpu_type="h100")
    make = old.get_model("inventory", "Node").objects.create
    for i, (host, gpus) in enumerate(rows):
        make(dc=dc, pool=pool, name=f"node-{i}", host=host, gpus=gpus)


def test_nodes_of_before_get_ports_of_their_own(old: Any) -> None:
    rows = [("10.0.0.1", 4), ("10.0.0.2", 8), ("10.0.0.1", 64), ("10.0.0.1", 1), ("10.0.0.2", 50)]
    make_nodes(old, rows)
    found = migrate(AFTER).get_model("inventory", "Node").objects.order_by("pk")
    ranges = [(node.host, node.port_from, node.port_to) for node in found]
    # 64 GPUs want 129 ports: two hundreds. 50 want 101: two hundreds as well.
    assert ranges == [
        ("10.0.0.1", 29_500, 29_599), ("10.0.0.2", 29_500, 29_599), ("10.0.0.1", 29_600, 29_799),
        ("10.0.0.1", 29_800, 29_899), ("10.0.0.2", 29_600, 29_799),
    ]  # fmt: skip
    assert [node.gpus for node in found] == [gpus for _, gpus in rows]
    assert not any(node.draining_since for node in found)


def test_a_host_with_more_nodes_than_ports_begins_anew_and_every_range_is_large_enough(old: Any) -> None:
    rows = [("127.0.0.1", (8, 100, 1)[i % 3]) for i in range(30)]
    make_nodes(old, rows)
    found = list(migrate(AFTER).get_model("inventory", "Node").objects.order_by("pk"))
    by_host: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for node in found:
        assert 29_500 <= node.port_from <= node.port_to <= 32_767
        assert node.port_to - node.port_from + 1 >= 2 * node.gpus + 1
        by_host[node.host].append((node.port_from, node.port_to))
    first_round = list(itertools.takewhile(lambda span: span[0] != 29_500, by_host["127.0.0.1"][1:]))
    for (_, end), (begin, _) in itertools.pairwise([by_host["127.0.0.1"][0], *first_round]):
        assert end < begin
    assert len(first_round) < len(rows) - 1, "there was no room for all"
