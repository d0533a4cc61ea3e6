"""Structured partitions from which the search begins; its result is never worse than the best of them.

stripe : every group takes one device of each region, so that pipelines stay inside regions.
block : every group stays inside a region, so that gradients do.
machine-aware : as many stages as the machines allow lie along fast connections, each group taking one
device of each of D machines; the rest follows in the order of the devices.

Regions and machines are not given. Devices are ordered by single linkage, which puts those with fast
connections next to each other. Machines are the clusters of that tree, cut at the largest jumps of cost.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement.problem import Problem

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MOST_CUTS = 6


def structured(problem: Problem) -> Iterator[tuple[str, Ints]]:
    """The name and groups, shape (P, D), of every structured start, each once, stripe and block first."""
    seen = set()
    for name, groups in _with_repetitions(problem):
        partition = frozenset(frozenset(group) for group in groups.tolist())
        if partition not in seen:
            seen.add(partition)
            yield name, groups


def _with_repetitions(problem: Problem) -> Iterator[tuple[str, Ints]]:
    listed = np.arange(problem.devices)
    yield "stripe", stripe(listed, problem.stages)
    yield "block", block(listed, problem.stages)
    tree = merges(problem.pipeline_s + problem.data_s)
    near = leaf_order(tree, problem.devices)
    yield "stripe by nearness", stripe(near, problem.stages)
    yield "block by nearness", block(near, problem.stages)
    for level in cuts(tree):
        machines = clusters(tree, level, problem.devices)
        yield (
            f"machine-aware, {len(machines)} clusters",
            machine_aware(machines, problem.stages, problem.replicas),
        )


def stripe(order: Ints, stages: int) -> Ints:
    """Groups that take every `stages`-th device of `order`."""
    return order.reshape(-1, stages).T.copy()


def block(order: Ints, stages: int) -> Ints:
    """Groups that take consecutive devices of `order`."""
    return order.reshape(stages, -1).copy()


def machine_aware(machines: list[list[int]], stages: int, replicas: int) -> Ints:
    """Groups that each take one device of `replicas` machines, the largest first, while there are enough.

    The rest is striped, so its pipelines stay together as far as possible.
    """
    left = sorted((list(machine) for machine in machines), key=len, reverse=True)
    groups: list[list[int]] = []
    while len(left) >= replicas and len(groups) < stages:
        taken, left = left[:replicas], left[replicas:]
        depth = min(len(taken[-1]), stages - len(groups))
        groups += [[machine[i] for machine in taken] for i in range(depth)]
        rest = [machine[depth:] for machine in taken if len(machine) > depth]
        left = sorted(rest + left, key=len, reverse=True)
    remaining = np.array([device for machine in left for device in machine], dtype=np.int64)
    more = (
        stripe(remaining, stages - len(groups)) if len(remaining) else np.empty((0, replicas), dtype=np.int64)
    )
    return np.concatenate([np.array(groups, dtype=np.int64).reshape(-1, replicas), more])


Merge = tuple[float, int, int]


def merges(seconds: Floats) -> list[Merge]:
    """The minimum spanning tree of `seconds` (Prim) as (cost, device, device), cheapest first."""
    devices = len(seconds)
    key = np.full(devices, np.inf)
    parent = np.zeros(devices, dtype=np.int64)
    outside = np.ones(devices, dtype=bool)
    edges: list[Merge] = []
    at = 0
    for _ in range(devices - 1):
        outside[at] = False
        nearer = outside & (seconds[at] < key)
        key[nearer] = seconds[at][nearer]
        parent[nearer] = at
        at = int(np.argmin(np.where(outside, key, np.inf)))
        edges.append((float(key[at]), int(parent[at]), at))
    return sorted(edges, key=lambda edge: edge[0])


def leaf_order(tree: list[Merge], devices: int) -> Ints:
    """The devices in the order in which the merges join them."""
    return np.array([device for cluster in _joined(tree, devices) for device in cluster], dtype=np.int64)


def cuts(tree: list[Merge]) -> list[float]:
    """Costs at which the tree is cut: the MOST_CUTS largest jumps of its edges' costs, cheapest first."""
    costs = np.array([cost for cost, _, _ in tree])
    if len(costs) == 0:
        return []
    ratios = costs[1:] / np.maximum(costs[:-1], 1e-300)
    jumps = [int(i) for i in np.argsort(-ratios, kind="stable")[:MOST_CUTS] if ratios[i] > 1]
    return sorted(float(costs[i]) for i in jumps)


def clusters(tree: list[Merge], level: float, devices: int) -> list[list[int]]:
    """Clusters after all merges of at most `level`."""
    return _joined([edge for edge in tree if edge[0] <= level], devices)


def _joined(tree: list[Merge], devices: int) -> list[list[int]]:
    cluster_of = [[device] for device in range(devices)]
    for _, one, other in tree:
        a, b = cluster_of[one], cluster_of[other]
        first, second = (a, b) if a[0] < b[0] else (b, a)
        first.extend(second)
        for device in second:
            cluster_of[device] = first
    seen: dict[int, list[int]] = {id(cluster): cluster for cluster in cluster_of}
    return list(seen.values())
