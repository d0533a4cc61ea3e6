"""The latest start of each op that does not delay the end of the run: the log read backwards; compiled."""

from engine.schedule.compiled import compiled
from engine.schedule.position_kernel import B, F, R


@compiled
def latest(cell, state, keys, after):
    """Fills `keys` (as Cell.keys) with minus the time from the start of each op to the end of the run.

    That is the latest start that would not delay the end, if every GPU and link keeps its order: the op that
    can wait least has the smallest key. `after` is scratch, shape (pipelines, P + 2 · hops + 2 · edges · M).
    """
    edges, hops = len(cell.stage_of) - 1, len(cell.transfer_time)
    stages, micro = len(cell.position_of), cell.microbatches
    after[:] = 0.0
    for i in range(state.logged[0] - 1, -1, -1):
        code = state.log[i]
        if code < 0:
            transfer, rest = (-1 - code) // (cell.pipelines * micro), (-1 - code) % (cell.pipelines * micro)
            k, m = rest // micro, rest % micro
            link = cell.link_of[transfer]
            owner = 0 if cell.shared[link] else k
            v = transfer + 1 if transfer < edges else transfer - edges
            wanted = -keys[0 if transfer < edges else 1, k, v, m]
            remaining = max(cell.latency[link % hops] + wanted, after[owner, stages + link])
            after[owner, stages + link] = cell.transfer_time[link % hops] + remaining
            after[k, stages + 2 * hops + transfer * micro + m] = cell.transfer_time[link % hops] + remaining
            continue
        kind, rest = code & 3, code >> 2
        m, rest = rest % micro, rest // micro
        v, k = rest % (edges + 1), rest // (edges + 1)
        s = cell.stage_of[v]
        tail = after[k, s]
        if kind == F and v == edges:
            tail = max(tail, -keys[1, k, v, m])
        elif kind == F or (kind == B and v > 0):
            transfer = v if kind == F else edges + v - 1
            if cell.link_of[transfer] >= 0:
                tail = max(tail, after[k, stages + 2 * hops + transfer * micro + m])
            else:
                tail = max(tail, -keys[0 if kind == F else 1, k, v + 1 if kind == F else v - 1, m])
        tail += cell.durations[kind, s]
        after[k, s] = tail
        if kind != R:
            keys[0 if kind == F else 1 if kind == B else 2, k, v, m] = -tail
