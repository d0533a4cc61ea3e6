"""The event loop over positions: any traversal, chunks, split backward, both limits; compiled.

One idea: every GPU, and every link with a choice of messages, has a time of its next decision (`wake`, in a
tree whose root is the earliest). The earliest actor decides. A GPU picks the op with the smallest key among
those that can run within its limits. A link picks the message whose receiver has the smallest key. In `fixed`
mode a GPU follows its given order; links still choose.

Of several actors at one instant links go first (a message that takes no time may free a GPU), then later
stages (their B opens gates upstream), then lower ranks.

A GPU never starts an op that it could not finish: it takes no F that would leave an older microbatch without
room (`_is_safe`). A W that frees the room inherits the urgency of the op that waits for it.

Microbatches go forward in their order and back in `cell.backwards`; only a given order may differ.

`greedy_kernel` is the other event loop. Its docstring says why there are two.
"""

import numpy as np

from engine.schedule.compiled import compiled, inlined
from engine.schedule.wake_tree import latest_up_to, set_wake, wakes_at

F, R, B, W = 0, 1, 2, 3
JIT, IDLE, LATE, BLOCKING = 0, 1, 2, 3
RANK, ROUND_ROBIN, FIFO = 0, 1, 2
# Keys of ops that run only when nothing with a key of its own can: R ahead of its gradient, then W.
AHEAD, LAST = 1e290, 1e295


@inlined
def _wake_gpu(cell, state, k, s, time):
    time = max(time, state.free[k, s])
    actor = s * cell.pipelines + cell.pipelines - 1 - k
    if time < wakes_at(state.wake, actor):
        set_wake(state.wake, actor, time)


@inlined
def _wake_link(cell, state, link, owner, time):
    time = max(time, state.link_free[link, owner])
    actor = (len(cell.position_of) + link) * cell.pipelines + owner
    if time < wakes_at(state.wake, actor):
        set_wake(state.wake, actor, time)


@inlined
def _log(state, code):
    if len(state.log):
        state.log[state.logged[0]] = code
        state.logged[0] += 1


@inlined
def _book(cell, state, transfer, k, m, owner, ready):
    """Sends a message as soon as its link is free, and wakes its receiver."""
    link = cell.link_of[transfer]
    hop = link % len(cell.transfer_time)
    start = max(ready, state.link_free[link, owner])
    end = start + cell.transfer_time[hop]
    state.link_free[link, owner] = end
    arrival = end + cell.latency[hop]
    edges = len(cell.stage_of) - 1
    _log(state, -1 - ((transfer * cell.pipelines + k) * cell.microbatches + m))
    v = transfer + 1 if transfer < edges else transfer - edges
    if transfer < edges:
        state.activation[k, v, m] = arrival
    else:
        state.gradient[k, v, m] = arrival
    _wake_gpu(cell, state, k, cell.stage_of[v], arrival)


@inlined
def _deliver(cell, state, transfer, k, m, end):
    """Hands the output of an op to the next chunk on its stage, or to its link."""
    edges = len(cell.stage_of) - 1
    link = cell.link_of[transfer]
    if link < 0:
        if transfer < edges:
            state.activation[k, transfer + 1, m] = end
        else:
            state.gradient[k, transfer - edges, m] = end
    elif cell.queued[link]:
        state.produced_at[transfer, k, m] = end
        _wake_link(cell, state, link, 0 if cell.shared[link] else k, end)
    else:
        _book(cell, state, transfer, k, m, k, end)


@inlined
def _is_safe(cell, state, k, s, v):
    """Whether one more F at position v leaves every microbatch of the stage room to finish, oldest first.

    This is the banker's algorithm: microbatches finish in order, each needs one chunk for each op that it has
    not begun, and gives back all that it holds. If `chunks` are free as well, none can be stuck.
    """
    ended = W if cell.split else B
    room = cell.cap[s] - state.held[k, s] - 1
    if room < 0 or (v == 0 and state.started[F, k, 0] - state.started[ended, k, 0] >= cell.window):
        return False
    if cell.chunks == 1 or room >= cell.chunks:
        return True
    oldest, newest = cell.microbatches, 0
    for c in range(cell.chunks):
        oldest = min(oldest, state.started[ended, k, cell.position_of[s, c]])
        newest = max(newest, state.started[F, k, cell.position_of[s, c]])
    mine = state.started[F, k, v]
    for m in range(oldest, max(newest, mine + 1)):
        needs, holds = 0, 0
        for c in range(cell.chunks):
            u = cell.position_of[s, c]
            begun = m < state.started[F, k, u] or (u == v and m == mine)
            if not begun:
                needs += 1
            elif m >= state.started[ended, k, u]:
                holds += 1
        if needs > room:
            return False
        room += holds
        if room >= cell.chunks:
            return True
    return True


@inlined
def _code(cell, kind, v, m):
    return (cell.chunk_of[v] * cell.microbatches + m) * 4 + kind


@inlined
def _has_full_room(cell, state, k, s):
    return cell.durations[R, s] == 0 or state.full[k, s] < cell.full_cap[s]


@inlined
def _backward_ready(cell, state, k, s, v):
    """When the inputs of B are there; inf while it waits for an F or R of this GPU."""
    m = state.started[B, k, v]
    if m >= state.started[F, k, v]:
        return np.inf
    if cell.durations[R, s] > 0 and state.started[R, k, v] <= m and state.last[k, s] != _code(cell, F, v, m):
        return np.inf
    return state.gradient[k, v, m]


@inlined
def _recompute_ready(cell, state, k, s, v):
    """When R may start by its rule; inf while it is not its turn."""
    m = state.started[B, k, v]
    if cell.durations[R, s] == 0 or m >= state.started[F, k, v] or state.started[R, k, v] > m:
        return np.inf
    if cell.gate == IDLE:
        return 0.0
    if cell.gate == LATE or v + 1 == len(cell.stage_of):
        return state.gradient[k, v, cell.backwards[m]]
    return 0.0 if state.started[B, k, v + 1] > m else np.inf


@inlined
def _choose(cell, state, k, s, now):
    """(kind, position, 0) of the op that the idle GPU starts now, or (-1, -1, time of its next decision)."""
    best, position, least = -1, -1, np.inf
    wake = np.inf
    soon, soon_key = np.inf, np.inf  # what is known to come, and its key
    blocked = np.inf  # key of what only a limit keeps from running
    full_room = _has_full_room(cell, state, k, s)
    alone = -1
    if cell.gate == BLOCKING and state.last[k, s] >= 0 and (state.last[k, s] & 3) == R:
        alone = (state.last[k, s] >> 2) // cell.microbatches
    for c in range(cell.chunks):
        v = cell.position_of[s, c]
        b = state.started[B, k, v]
        ready = _backward_ready(cell, state, k, s, v)
        if ready < np.inf:
            key = cell.keys[1, k, v, b]
            fits = full_room or state.started[R, k, v] > b
            if ready > now:
                wake = min(wake, ready)
                if key < soon_key:
                    soon, soon_key = ready, key
            elif not fits:
                blocked = min(blocked, key)
            elif key < least:
                best, position, least = B, v, key
        if alone >= 0:
            continue
        ready = _recompute_ready(cell, state, k, s, v)
        if ready < np.inf:
            key = cell.keys[1, k, v, b] if state.gradient[k, v, b] <= now else AHEAD
            if ready > now:
                wake = min(wake, ready)
            elif not full_room:
                blocked = min(blocked, key)
            elif key < least:
                best, position, least = R, v, key
        f = state.started[F, k, v]
        if f < cell.microbatches:
            ready, key = state.activation[k, v, f], cell.keys[0, k, v, f]
            fits = ready < np.inf and _is_safe(cell, state, k, s, v)
            if ready > now:
                wake = min(wake, ready)
                if key < soon_key and fits:
                    soon, soon_key = ready, key
            elif not fits or (v + 1 == len(cell.stage_of) and not full_room):
                blocked = min(blocked, key)
            elif key < least:
                best, position, least = F, v, key
    if cell.split and alone < 0:
        for c in range(cell.chunks):
            v = cell.position_of[s, c]
            w = state.started[W, k, v]
            if w < state.started[B, k, v]:
                key = min(cell.keys[2, k, v, w], blocked)
                if key < least or best < 0:
                    best, position, least = W, v, key
    if best >= 0 and soon_key < least and soon <= now + cell.patience * cell.durations[best, s]:
        return -1, -1, soon
    return best, position, wake


@inlined
def _given(cell, state, k, s, now):
    """As `_choose`, if the order is given."""
    at = state.length[k, s]
    code = state.order[k, s, at] if at < state.order.shape[2] else -1
    if code < 0:
        return -1, -1, np.inf
    kind, rest = code & 3, code >> 2
    v, m = cell.position_of[s, rest // cell.microbatches], rest % cell.microbatches
    ready = 0.0
    if kind == F:
        ready = state.activation[k, v, m]
    elif kind == B:
        ready = state.gradient[k, v, m]
    elif kind == R:
        ready = _recompute_ready(cell, state, k, s, v)
    if ready > now:
        return -1, -1, ready
    return kind, v, ready


@inlined
def _count(cell, state, kind, k, s, v, i):
    """Updates the chunks held, and held in full, after op number i of its kind."""
    again = cell.durations[R, s] > 0
    if kind == F:
        state.held[k, s] += 1
    elif kind == R or (kind == B and again and state.started[R, k, v] <= i):
        state.full[k, s] += 1
    if kind == (W if cell.split else B):
        state.held[k, s] -= 1
        state.full[k, s] -= again


@inlined
def _start(cell, state, kind, k, s, v, now):
    i = state.started[B if kind == R else kind, k, v]
    m = i if kind == F else cell.backwards[i]
    end = now + cell.durations[kind, s]
    at = state.length[k, s]
    code = _code(cell, kind, v, m)
    state.order[k, s, at] = code
    state.length[k, s] = at + 1
    state.last[k, s] = code
    state.free[k, s] = end
    _count(cell, state, kind, k, s, v, i)
    state.started[kind, k, v] = i + 1
    edges = len(cell.stage_of) - 1
    _log(state, ((k * (edges + 1) + v) * cell.microbatches + m) * 4 + kind)
    if kind == F and v == edges:
        state.gradient[k, v, m] = end
    elif kind == F or (kind == B and v > 0):
        _deliver(cell, state, v if kind == F else edges + v - 1, k, m, end)
        if kind == B and (cell.gate == JIT or cell.gate == BLOCKING):
            _wake_gpu(cell, state, k, cell.stage_of[v - 1], now)


@inlined
def _run_gpu(cell, state, actor, now):
    s, k = actor // cell.pipelines, cell.pipelines - 1 - actor % cell.pipelines
    horizon = now + cell.instant
    if state.free[k, s] > horizon:
        set_wake(state.wake, actor, state.free[k, s])
        return
    if cell.fixed:
        kind, v, wake = _given(cell, state, k, s, horizon)
    else:
        kind, v, wake = _choose(cell, state, k, s, horizon)
    if kind < 0:
        set_wake(state.wake, actor, wake)
        return
    _start(cell, state, kind, k, s, v, now)
    set_wake(state.wake, actor, state.free[k, s])


@inlined
def _turn(cell, state, link, k):
    """Priority of pipeline k on a shared link; the smallest sends first."""
    if cell.tie == RANK:
        return float(k)
    if cell.tie == ROUND_ROBIN:
        return float((k - state.link_last[link] - 1) % cell.pipelines)
    return 0.0


@inlined
def _run_link(cell, state, actor, now):
    """Sends the most urgent message; in a fixed order, the one produced first."""
    hops = len(cell.transfer_time)
    link, owner = actor // cell.pipelines - len(cell.position_of), actor % cell.pipelines
    horizon = now + cell.instant
    if state.link_free[link, owner] > horizon:
        set_wake(state.wake, actor, state.link_free[link, owner])
        return
    first, last = (0, cell.pipelines) if cell.shared[link] else (owner, owner + 1)
    edges = len(cell.stage_of) - 1
    chosen, sender, chunk = -1, -1, -1
    least, second, wake = np.inf, np.inf, np.inf
    for k in range(first, last):
        turn = _turn(cell, state, link, k)
        for c in range(cell.chunks):
            x = cell.transfer_of[link // hops, link % hops, c]
            if x < 0 or state.sent[x, k] >= cell.microbatches:
                continue
            m = state.sent[x, k] if x < edges else cell.backwards[state.sent[x, k]]
            produced_at = state.produced_at[x, k, m]
            if produced_at > horizon:
                wake = min(wake, produced_at)
                continue
            major, minor = turn, produced_at
            if not cell.fixed:
                minor = turn if cell.tie != FIFO else produced_at
                major = cell.keys[0, k, x + 1, m] if x < edges else cell.keys[1, k, x - edges, m]
            if major < least or (major == least and minor < second):
                chosen, sender, chunk, least, second = x, k, c, major, minor
    if chosen < 0:
        set_wake(state.wake, actor, wake)
        return
    m = state.sent[chosen, sender] if chosen < edges else cell.backwards[state.sent[chosen, sender]]
    state.sent[chosen, sender] += 1
    state.link_last[link] = sender
    at = state.link_length[link, owner]
    begin = owner * cell.chunks * cell.microbatches
    state.link_order[link, begin + at] = (sender * cell.chunks + chunk) * cell.microbatches + m
    state.link_length[link, owner] = at + 1
    _book(cell, state, chosen, sender, m, owner, now)
    set_wake(state.wake, actor, state.link_free[link, owner])


@compiled
def run(cell, state):
    """Fills `state` until no decision is left; `length` counts the ops that have started."""
    gpus = len(cell.position_of) * cell.pipelines
    for k in range(cell.pipelines):
        for m in range(cell.microbatches):
            state.activation[k, 0, m] = cell.release[m]
    for s in range(len(cell.position_of)):
        for k in range(cell.pipelines):
            _wake_gpu(cell, state, k, s, 0.0 if s == 0 or cell.fixed else np.inf)
    while state.wake[1] < np.inf:
        now = state.wake[1]
        actor = latest_up_to(state.wake, now + cell.instant)
        if actor >= gpus:
            _run_link(cell, state, actor, now)
        else:
            _run_gpu(cell, state, actor, now)
