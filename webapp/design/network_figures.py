"""Of the Network design page: the traffic heat map, and iteration time over one parameter."""

import math
from typing import Any

from engine.inputs import parse
from engine.plan.network.design import iteration_rows
from engine.plan.network.heat import heat
from engine.plan.network.request import NetworkRequest
from engine.plan.network.result import NetworkResult
from webapp.common.figures import LEVELS, Column, Figures, Matrix

MOST_GROUPS = 16
KEPT = ("hb_domain", "feasible", "reason", "iteration_s", "tp", "pp", "dp")
# What may be swept: field of the document, label, unit.
SWEPT = {
    "nic_gb_s": ("NIC", "GB/s"),
    "hb_gb_s": ("HB", "GB/s"),
    "batch": ("Batch", "sequences"),
}


def heat_of(result: NetworkResult) -> dict[str, Any] | None:
    """{gpus_each, gpus, bytes}: what groups of GPUs send each other; None without a strategy that fits."""
    if result.job is None:
        return None
    matrix = heat(result.job, MOST_GROUPS)
    return {"gpus_each": matrix.gpus_each, "gpus": result.job.gpus, "bytes": matrix.bytes.tolist()}


def swept(document: dict[str, Any], parameter: str, values: list[float]) -> dict[str, Any]:
    """{parameter, rows: [{value, hb_domain, feasible, iteration_s, tp, pp, dp, reason}]} of every design."""
    rows = []
    for value in values:
        request = parse(NetworkRequest, {**document, parameter: value})
        for row in iteration_rows(request):
            rows.append({"value": value, **{name: getattr(row, name) for name in KEPT}})
    return {"parameter": parameter, "rows": rows}


def sweep_table(sweep: dict[str, Any]) -> Figures:
    """The table of a sweep, one row per value and design."""
    label, unit = SWEPT[sweep["parameter"]]
    rows = sweep["rows"]
    return Figures(
        name="sweep",
        title=f"Iteration time over {label}",
        note="With the fastest parallelism that fits, for each value",
        rows=rows,
        columns=[
            Column(label=label, key="value", unit=unit, decimals=0 if unit == "sequences" else 3),
            Column(label="HB", key="hb_domain", decimals=0),
            Column(label="Iteration", key="iteration_s", unit="s", decimals=3),
            *(Column(label=name.upper(), key=name, decimals=0, wide=True) for name in ("tp", "pp", "dp")),
            *([Column(label="", key="reason")] if any(row["reason"] for row in rows) else []),
        ],
    )


def sweep_chart(sweep: dict[str, Any]) -> dict[str, Any] | None:
    """{title, unit, lines: [{name, points: [[value, s]]}]} of the designs that fit; None where none does."""
    label, unit = SWEPT[sweep["parameter"]]
    points: dict[int, list[list[float]]] = {}
    for row in sorted(sweep["rows"], key=lambda row: float(row["value"])):
        if row["feasible"]:
            points.setdefault(row["hb_domain"], []).append([row["value"], row["iteration_s"]])
    lines = [{"name": f"HB {size}", "points": row} for size, row in points.items()]
    return (
        {"title": f"Iteration time over {label}, s", "unit": f"{label}, {unit}", "lines": lines}
        if lines
        else None
    )


def heat_table(matrix: dict[str, Any]) -> Figures:
    """Every pair of groups that sends anything, for the file."""
    names = _names(matrix)
    rows = [
        {"from": names[i], "to": names[j], "bytes": size}
        for i, row in enumerate(matrix["bytes"])
        for j, size in enumerate(row)
        if size > 0
    ]
    return Figures(
        name="heat",
        title="Traffic between GPUs",
        rows=rows,
        file_only=True,
        columns=[
            Column(label="Sending GPUs", key="from"),
            Column(label="Receiving GPUs", key="to"),
            Column(label="Bytes", key="bytes", decimals=0),
        ],
    )


def heat_matrix(matrix: dict[str, Any]) -> Matrix:
    """The heat map; each step of colour is a factor of ten below the most."""
    names = _names(matrix)
    most = max((size for row in matrix["bytes"] for size in row), default=0.0)
    rows = []
    short = [f"{i * matrix['gpus_each']:,}" for i in range(len(names))]  # a group is named by its first GPU
    for name, head, row in zip(names, short, matrix["bytes"], strict=True):
        cells: list[tuple[str, int | None, str]] = []
        for other, size in zip(names, row, strict=True):
            pair = f"GPUs {name} to {other}" if name != other else f"among GPUs {name}"
            if size <= 0:
                cells.append(("–", None, f"{pair}: nothing"))
                continue
            level = max(0, LEVELS - 1 - math.floor(math.log10(most / size) + 1e-9))
            cells.append((f"{size / 1e12:.3g}", level, f"{pair}: {size / 1e12:,.6g} TB"))
        rows.append((head, cells))
    return Matrix(
        show="traffic",
        label="Traffic",
        unit="TB",
        names=short,
        rows=rows,
        most=most / 1e12,
        of=len(names),
        by_device=matrix["gpus_each"] == 1,
    )


def _names(matrix: dict[str, Any]) -> list[str]:
    each, gpus = matrix["gpus_each"], matrix["gpus"]
    return [
        f"{first}–{min(first + each, gpus) - 1}" if each > 1 else str(first) for first in range(0, gpus, each)
    ]
