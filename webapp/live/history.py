"""The whole run for charts: one point per iteration, or per so many that there are at most 2,000."""

from collections.abc import Iterable
from typing import Any

from django.db.models import Avg, F, Max, Min, Q, QuerySet, Sum

from engine.job.shape import Shape, shape_of
from webapp.jobs.models import Run
from webapp.live import payload
from webapp.live.models import IterationStat

MOST_POINTS = 2_000
MEANS = (
    "loss",
    "bits_per_byte",
    "validation_loss",
    "validation_bits_per_byte",
    "grad_norm",
    "learning_rate",
    "utilization",
)
Row = dict[str, Any]


def history(run: Run, most: int = MOST_POINTS) -> dict[str, Any]:
    """The answer of history.json (docs/dev/interfaces.md).

    A point that stands for several iterations has the number of the last one, the start of the first, the end
    of the last and means between; tokens per second are all tokens over all time. `every` says how many.
    """
    shape = shape_of(run.job.document)
    stats = IterationStat.objects.filter(run=run)
    last = stats.aggregate(last=Max("iteration"))["last"]
    every = 1 if last is None else -(-(last + 1) // most)
    rows = list(_points(stats, shape, every))
    return {
        "every": every,
        "iterations": [_entry(run, row) for row in rows],
        "dcs": [
            {"name": name, "utilization": [_rounded(row[f"dc_{i}"]) for row in rows]}
            for i, name in enumerate(shape.dcs)
        ],
        "links": [
            {
                "from": link["from"],
                "to": link["to"],
                "cap_gbps": link["cap_gbps"],
                "gbps": [_rounded(row[f"link_{i}"]) for row in rows],
            }
            for i, link in enumerate(shape.links)
        ],
    }


def _points(stats: QuerySet[IterationStat], shape: Shape, every: int) -> Iterable[Row]:
    """One row per point, by iteration."""
    timed = Q(tokens__isnull=False, start__isnull=False, end__isnull=False)
    rows: Any = stats.order_by().annotate(point=F("iteration") / every).values("point")
    return rows.annotate(
        last=Max("iteration"),
        first_start=Min("start"),
        last_end=Max("end"),
        all_tokens=Sum("tokens", filter=timed),
        seconds=Sum(F("end") - F("start"), filter=timed),
        **{f"mean_{name}": Avg(name) for name in MEANS},
        **{f"dc_{i}": Avg(F(f"dc_utilization__{i}")) for i in range(len(shape.dcs))},
        **{f"link_{i}": Avg(F(f"link_gbps__{i}")) for i in range(len(shape.links))},
    ).order_by("point")


def _entry(run: Run, row: Row) -> Row:
    start, end, seconds = row["first_start"], row["last_end"], row["seconds"]
    return {
        "iteration": row["last"],
        "start": None if start is None else payload.now_ms(run, start),
        "end": None if end is None else payload.now_ms(run, end),
        **{name: row[f"mean_{name}"] for name in MEANS},
        "utilization": _rounded(row["mean_utilization"]),
        "tokens_per_s": round(row["all_tokens"] / seconds, 3) if row["all_tokens"] and seconds else None,
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
