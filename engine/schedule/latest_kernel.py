"""How late could each op of a run start without delaying its end? The log read backwards; compiled."""

from engine.schedule.compiled import compiled
from engine.schedule.places_kernel import B, F, R


@compiled
def latest(cell, state, keys, after):
    """Fills `keys` (as Cell.keys) with minus the time from the start of each op to the end of everything.

    That is the latest start that would not delay the end, if every GPU and link keeps its order: who can
    wait least has the smallest key. `after` is scratch, shape (pipelines, P + 2 · hops + 2 · edges · M).
    """
    edges, hops = len(cell.stage_of) - 1, len(cell.transfer)
    stages, micro = len(cell.place_of), cell.microbatches
    after[:] = 0.0
    for i in range(state.logged[0] - 1, -1, -1):
        code = state.log[i]
        if code < 0:
            crossing, rest = (-1 - code) // (cell.pipelines * micro), (-1 - code) % (cell.pipelines * micro)
            k, m = rest // micro, rest % micro
            link = cell.link_of[crossing]
            owner = 0 if cell.shared[link] else k
            v = crossing + 1 if crossing < edges else crossing - edges
            wanted = -keys[0 if crossing < edges else 1, k, v, m]
            rest_of_way = max(cell.latency[link % hops] + wanted, after[owner, stages + link])
            after[owner, stages + link] = cell.transfer[link % hops] + rest_of_way
            after[k, stages + 2 * hops + crossing * micro + m] = cell.transfer[link % hops] + rest_of_way
            continue
        kind, rest = code & 3, code >> 2
        m, rest = rest % micro, rest // micro
        v, k = rest % (edges + 1), rest // (edges + 1)
        s = cell.stage_of[v]
        tail = after[k, s]
        if kind == F and v == edges:
            tail = max(tail, -keys[1, k, v, m])
        elif kind == F or (kind == B and v > 0):
            crossing = v if kind == F else edges + v - 1
            if cell.link_of[crossing] >= 0:
                tail = max(tail, after[k, stages + 2 * hops + crossing * micro + m])
            else:
                tail = max(tail, -keys[0 if kind == F else 1, k, v + 1 if kind == F else v - 1, m])
        tail += cell.durations[kind, s]
        after[k, s] = tail
        if kind != R:
            keys[0 if kind == F else 1 if kind == B else 2, k, v, m] = -tail
