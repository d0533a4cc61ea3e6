"""The communication cost of a partition of the devices into groups (DT-FM §3, Eqs. 1–4), compiled and
incremental.

When two devices are exchanged, only the costs of their two groups and the matchings of these change. A cost
above a given limit is recognised as early as possible, and then not computed to its end.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.plan.placement import kernel_moves, kernel_path
from engine.plan.placement.kernel_matching import MatchRoom, bottleneck, match_room
from engine.plan.placement.kernel_path import PathRoom, path_room
from engine.schedule.compiled import compiled

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DATA, PIPELINE, TOTAL = 0, 1, 2


class Costs(NamedTuple):
    """Seconds between every two devices, shape (N, N), symmetric, 0 on the diagonal."""

    data: Floats  # 2·(α + c_DP / (D_DP·β)), the term of DT-FM Eq. 2
    pipeline: Floats  # 2·(α + c_PP / β), the term of DT-FM Eq. 3
    least_path: float  # no path is shorter than this


class State(NamedTuple):
    """A partition with its costs. Every array is changed in place."""

    members: Ints  # (P, D): the devices of each group
    group: Ints  # (N,): the group of each device
    slot: Ints  # (N,): its index in members
    inside: Floats  # (P,): Eq. 2 of each group
    between: Floats  # (P, P): Eq. 3 of each pair of groups
    nearest: Floats  # (P, N): the cheapest pipeline link between a group and each device; 0 for its own
    order: Ints  # (P,): a path through the groups
    cost: Floats  # (3,): data-parallel, pipeline, total


class Room(NamedTuple):
    """Working memory, and the values that undo a swap."""

    match: MatchRoom
    path: PathRoom
    inside: Floats  # (2,)
    between: Floats  # (2, P)
    nearest: Floats  # (2, N)
    order: Ints  # (P,)
    cost: Floats  # (3,)


def new_state(groups: int, size: int) -> State:
    """Device d in group d // size of `groups` groups of `size`. Its costs are not computed yet."""
    members = np.arange(groups * size, dtype=np.int64).reshape(groups, size)
    return State(
        members=members,
        group=np.repeat(np.arange(groups, dtype=np.int64), size),
        slot=np.tile(np.arange(size, dtype=np.int64), groups),
        inside=np.zeros(groups),
        between=np.zeros((groups, groups)),
        nearest=np.zeros((groups, groups * size)),
        order=np.arange(groups, dtype=np.int64),
        cost=np.zeros(3),
    )


def new_room(groups: int, size: int) -> Room:
    """Working memory for partitions into `groups` groups of `size`."""
    return Room(
        match=match_room(size),
        path=path_room(groups),
        inside=np.zeros(2),
        between=np.zeros((2, groups)),
        nearest=np.zeros((2, groups * size)),
        order=np.zeros(groups, dtype=np.int64),
        cost=np.zeros(3),
    )


@compiled
def evaluate(costs: Any, state: Any, exact: bool, room: Any) -> float:
    """Computes every cost of `state` from its `members`, and a path; returns the total.

    exact : the path is the shortest (to EXACT groups); else it may be a little longer if a proof is hard.
    """
    groups, size = state.members.shape
    for group in range(groups):
        for slot in range(size):
            state.group[state.members[group, slot]] = group
            state.slot[state.members[group, slot]] = slot
        state.inside[group] = _inside(costs, state, group)
        for device in range(groups * size):
            state.nearest[group, device] = _nearest(costs, state, group, device)
    for a in range(groups):
        for b in range(a + 1, groups):
            _bound(state, a, b)
            _match(costs, state, a, b, room)
    if groups > kernel_path.DIRECT:
        kernel_moves.fresh(state.between, state.order, room.path)
    _add_up(state, np.inf, exact, room)
    return state.cost[TOTAL]


@compiled
def swap(costs: Any, state: Any, one: int, other: int, limit: float, room: Any) -> bool:
    """Exchanges two devices of different groups; False if bounds put the total above `limit`.

    If True, `finish_swap` computes the total. `unswap` undoes either, once.
    """
    a, b = state.group[one], state.group[other]
    _save(state, a, b, room)
    exchange(state, one, other)
    state.inside[a] = _inside(costs, state, a)
    state.inside[b] = _inside(costs, state, b)
    if max(state.inside[a], state.inside[b]) + costs.least_path > limit:
        return False
    _renew_nearest(costs, state, a, one, other)
    _renew_nearest(costs, state, b, other, one)
    for group in range(state.members.shape[0]):
        if group != a:
            _bound(state, a, group)
        if group != a and group != b:
            _bound(state, b, group)
    left = (limit - _largest(state.inside)) * (1 + kernel_moves.ROUNDING)
    return kernel_path.spanning_tree(state.between, room.path, False) <= left


@compiled
def finish_swap(costs: Any, state: Any, one: int, other: int, limit: float, room: Any) -> float:
    """The total after a `swap` that returned True, or ``inf`` if it is above `limit`."""
    a, b = state.group[one], state.group[other]
    for group in range(state.members.shape[0]):
        if group != a:
            _match(costs, state, a, group, room)
        if group != a and group != b:
            _match(costs, state, b, group, room)
    _add_up(state, limit, False, room)
    return state.cost[TOTAL]


@compiled
def unswap(state: Any, one: int, other: int, room: Any) -> None:
    """Undoes the last `swap` of these two devices."""
    exchange(state, one, other)
    a, b = state.group[one], state.group[other]
    for group in range(state.members.shape[0]):
        state.between[a, group] = state.between[group, a] = room.between[0, group]
        state.between[b, group] = state.between[group, b] = room.between[1, group]
        state.order[group] = room.order[group]
    for device in range(state.group.shape[0]):
        state.nearest[a, device] = room.nearest[0, device]
        state.nearest[b, device] = room.nearest[1, device]
    state.inside[a], state.inside[b] = room.inside[0], room.inside[1]
    for i in range(3):
        state.cost[i] = room.cost[i]


@compiled
def _save(state: Any, a: int, b: int, room: Any) -> None:
    """Saves the values that a swap between groups `a` and `b` changes."""
    for group in range(state.members.shape[0]):
        room.between[0, group] = state.between[a, group]
        room.between[1, group] = state.between[b, group]
        room.order[group] = state.order[group]
    for device in range(state.group.shape[0]):
        room.nearest[0, device] = state.nearest[a, device]
        room.nearest[1, device] = state.nearest[b, device]
    room.inside[0], room.inside[1] = state.inside[a], state.inside[b]
    for i in range(3):
        room.cost[i] = state.cost[i]


@compiled
def device_cost(costs: Any, state: Any, device: int) -> float:
    """Exchange time of `device` with its group: the sum of Eq. 2."""
    group = state.group[device]
    total = 0.0
    for slot in range(state.members.shape[1]):
        total += costs.data[device, state.members[group, slot]]
    return total


@compiled
def _inside(costs: Any, state: Any, group: int) -> float:
    """DT-FM Eq. 2: the slowest device of the group, exchanging with all others of it."""
    size = state.members.shape[1]
    most = 0.0
    for slot in range(size):
        device = state.members[group, slot]
        total = 0.0
        for other in range(size):
            total += costs.data[device, state.members[group, other]]
        most = max(most, total)
    return most


@compiled
def _nearest(costs: Any, state: Any, group: int, device: int) -> float:
    least = np.inf
    for slot in range(state.members.shape[1]):
        least = min(least, costs.pipeline[device, state.members[group, slot]])
    return least


@compiled
def _renew_nearest(costs: Any, state: Any, group: int, gone: int, come: int) -> None:
    """Updates ``nearest`` after `come` replaced `gone` in `group`."""
    for device in range(state.group.shape[0]):
        if costs.pipeline[gone, device] <= state.nearest[group, device]:
            state.nearest[group, device] = _nearest(costs, state, group, device)
        elif costs.pipeline[come, device] < state.nearest[group, device]:
            state.nearest[group, device] = costs.pipeline[come, device]


@compiled
def _bound(state: Any, a: int, b: int) -> None:
    """Sets ``between`` to a lower bound: every device of either group needs some partner in the other."""
    bound = 0.0
    for slot in range(state.members.shape[1]):
        bound = max(bound, state.nearest[b, state.members[a, slot]], state.nearest[a, state.members[b, slot]])
    state.between[a, b] = state.between[b, a] = bound


@compiled
def _match(costs: Any, state: Any, a: int, b: int, room: Any) -> None:
    """DT-FM Eq. 3 of two groups, starting from the lower bound in ``between``."""
    bound = state.between[a, b]
    slowest = bottleneck(costs.pipeline, state.members, min(a, b), max(a, b), bound, room.match)
    state.between[a, b] = state.between[b, a] = slowest


@compiled
def _largest(values: Any) -> float:
    most = 0.0
    for i in range(values.shape[0]):
        most = max(most, values[i])
    return most


@compiled
def _add_up(state: Any, limit: float, exact: bool, room: Any) -> None:
    """DT-FM Eq. 1 and Eq. 4 from the costs inside and between groups."""
    most = _largest(state.inside)
    state.cost[DATA] = most
    state.cost[PIPELINE] = kernel_path.shortest(state.between, state.order, limit - most, exact, room.path)
    state.cost[TOTAL] = state.cost[DATA] + state.cost[PIPELINE]


@compiled
def exchange(state: Any, one: int, other: int) -> None:
    """Exchanges two devices without updating costs."""
    a, b = state.group[one], state.group[other]
    i, j = state.slot[one], state.slot[other]
    state.members[a, i], state.members[b, j] = other, one
    state.group[one], state.group[other] = b, a
    state.slot[one], state.slot[other] = j, i
