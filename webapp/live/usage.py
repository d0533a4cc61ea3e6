"""How busy GPUs and links are: rolled up per iteration from spans, and summed over iterations, here alone."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from engine.job.codes import SYNC, TRAINING, Code

# [from_dc, to_dc, bytes, start, end, latency]: one transfer between two data centres, ms since epoch
Traffic = list[Any]


def of_batch(codes: Iterable[Code], dc_of_stage: Sequence[int]) -> tuple[float, float, list[Traffic]]:
    """Busy seconds (F, R, B, W), sync seconds (all-reduce, optimizer) and WAN transfers of a rank.

    dc_of_stage : of the pipeline of that rank.
    """
    busy = sync = 0.0
    traffic: list[Traffic] = []
    for code in codes:
        if code[0] in TRAINING:
            busy += code[3] - code[2]
        elif code[0] in SYNC:
            sync += code[3] - code[2]
        elif code[0] == "T" and dc_of_stage[code[5]] != dc_of_stage[code[6]]:
            ends = dc_of_stage[code[5]], dc_of_stage[code[6]]
            traffic.append([*ends, code[8], code[2], code[3], round(code[4] - code[3], 3)])
    return busy / 1e3, sync / 1e3, traffic


def total(
    stats: Sequence[Any],
    *,
    dc_of_rank: Sequence[int],
    ranks: Collection[int],
    pairs: int,
    links: Sequence[dict[str, Any]],
    predicted: Any,
) -> dict[str, Any] | None:
    """The `usage` of the live data (docs/dev/interfaces.md) over whole iterations; None where there is none.

    Parameters
    ----------
    stats : IterationStat rows, each with all its ranks in.
    ranks : those that train: shares are of their time alone.
    pairs : node pairs that one transfer uses together: the cell's pipelines where a link is shared in time.
    links : [{from, to, cap_gbps}], one per direction.
    """
    seconds = sum(stat.end - stat.start for stat in stats)
    if not stats or seconds <= 0:
        return None
    lanes = [
        (
            sum(stat.busy_s.get(str(rank), 0.0) for stat in stats) / seconds,
            sum(stat.sync_s.get(str(rank), 0.0) for stat in stats) / seconds,
        )
        for rank in range(len(dc_of_rank))
    ]
    dcs = [
        _shares([lanes[rank] for rank in ranks if dc_of_rank[rank] == dc])
        for dc in range(max(dc_of_rank) + 1)
    ]
    traffic = [row for stat in stats for rows in stat.traffic.values() for row in rows]
    return {
        "iterations": len(stats),
        "iteration_ms": round(seconds / len(stats) * 1e3, 3),
        "run": {**_shares([lanes[rank] for rank in ranks]), "predicted": predicted},
        "dcs": dcs,
        "lanes": [[round(busy, 4), round(sync, 4)] for busy, sync in lanes],
        "links": _links(traffic, links, seconds, pairs),
    }


def _shares(lanes: Sequence[tuple[float, float]]) -> dict[str, float]:
    count = max(1, len(lanes))
    busy = sum(lane[0] for lane in lanes) / count
    sync = sum(lane[1] for lane in lanes) / count
    return {
        "utilization": round(busy, 4),
        "sync": round(sync, 4),
        "bubbles": round(max(0.0, 1 - busy - sync), 4),
    }


def _links(
    traffic: list[Traffic], links: Sequence[dict[str, Any]], seconds: float, pairs: int
) -> list[dict[str, Any]]:
    by_direction: dict[tuple[int, int], list[Traffic]] = defaultdict(list)
    for row in traffic:
        by_direction[row[0], row[1]].append(row)
    return [
        {
            **_direction(by_direction[link["from"], link["to"]], seconds, pairs),
            "from": link["from"],
            "to": link["to"],
            "cap_gbps": link["cap_gbps"],
        }
        for link in links
    ]


def _direction(rows: list[Traffic], seconds: float, pairs: int) -> dict[str, Any]:
    """What went one way between two data centres. Gbps per node pair; the latency is the last one."""
    if not rows:
        return {"gbps": None, "busy": 0.0, "mean_gbps": 0.0, "latency_ms": None}
    bits = sum(row[2] for row in rows) * 8
    sending_ms = sum(row[4] - row[3] for row in rows)
    latest = max(rows, key=lambda row: row[4])
    gbps = bits / (sending_ms * 1e-3 * pairs) / 1e9 if sending_ms > 0 else None
    return {
        "gbps": None if gbps is None else round(gbps, 4),
        "busy": round(min(1.0, _union((row[3], row[4]) for row in rows) * 1e-3 / seconds), 4),
        "mean_gbps": round(bits / seconds / 1e9, 4),
        "latency_ms": latest[5] if len(latest) > 5 else None,  # rows of before 2026-11-28 have none
    }


def _union(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of intervals."""
    covered, until = 0.0, float("-inf")
    for start, end in sorted(intervals):
        covered += max(0.0, end - max(start, until))
        until = max(until, end)
    return covered
