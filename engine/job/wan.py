"""What a run sent between data centres: bytes, rate and cost by direction and stages."""

from dataclasses import dataclass
from typing import Any

from engine.job.job import TrainJob

GB = 1e9


@dataclass(frozen=True, slots=True, order=True)
class _Direction:
    """From a stage to a stage, and their data centres (indexes); one stage: replicas that sum gradients."""

    from_stage: int
    to_stage: int
    from_dc: int
    to_dc: int


@dataclass(slots=True)
class _Sent:
    """Of one direction. seconds: in which `timed_bytes` were on their link, where that was measured."""

    nbytes: int = 0
    timed_bytes: int = 0
    seconds: float = 0.0
    egress_bytes: int = 0
    connections: int = 0
    latency_ms: float | None = None


def wan_rows(job: TrainJob, stats: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Traffic by direction between data centres, with gradients that replicas, or the ends of a model, sum.

    Parameters
    ----------
    stats : of each rank its `pipeline` and `stage`, and rows with `to_pipeline` and `to_stage`: `traffic`
        between stages (bytes, seconds), `summed` gradients (bytes), and `egress` (bytes, connections,
        latency_ms).

    Returns
    -------
    Rows {from, to, from_stage, to_stage, bytes, egress_bytes, egress_cost, gbps, connections, latency_ms}.
    bytes are of messages; egress_bytes is all that left, with headers, signs of life and repeats.
    egress_cost is in dollars; None if the job has no price. gbps is the rate while a message is on its
    link; None for sums, whose parts are small and wait for each other. connections are those of a node pair
    at the end. latency_ms is one way, as last measured, of the node pair that has most; None if it was not
    measured.
    """
    sent: dict[_Direction, _Sent] = {}
    for rank in stats:
        for row in (*rank["traffic"], *rank["summed"]):
            way = sent.setdefault(_direction(job, rank, row), _Sent())
            way.nbytes += row["bytes"]
            if "seconds" in row:
                way.timed_bytes += row["bytes"]
                way.seconds += row["seconds"]
        for row in rank["egress"]:
            way = sent.setdefault(_direction(job, rank, row), _Sent())
            way.egress_bytes += row["bytes"]
            way.connections = max(way.connections, row["connections"])
            if row["latency_ms"] is not None:
                way.latency_ms = max(way.latency_ms or 0.0, row["latency_ms"])
    return [_row(job, direction, sent[direction]) for direction in sorted(sent)]


def _direction(job: TrainJob, rank: dict[str, Any], row: dict[str, Any]) -> _Direction:
    from_stage, to_stage = rank["stage"], row["to_stage"]
    return _Direction(
        from_stage,
        to_stage,
        job.dcs_of_pipeline[rank["pipeline"]][from_stage],
        job.dcs_of_pipeline[row["to_pipeline"]][to_stage],
    )


def _row(job: TrainJob, direction: _Direction, sent: _Sent) -> dict[str, Any]:
    link = job.link_between(direction.from_dc, direction.to_dc)
    price = None if link is None else link.egress_price_per_gb
    return {
        "from": job.datacenters[direction.from_dc].name,
        "to": job.datacenters[direction.to_dc].name,
        "from_stage": direction.from_stage,
        "to_stage": direction.to_stage,
        "bytes": sent.nbytes,
        "egress_bytes": sent.egress_bytes,
        "egress_cost": None if price is None else sent.egress_bytes / GB * price,
        "gbps": sent.timed_bytes * 8 / sent.seconds / 1e9 if sent.seconds else None,
        "connections": sent.connections,
        "latency_ms": None if sent.latency_ms is None else round(sent.latency_ms, 3),
    }
