"""One DP-cell of a plan's option: its predicted timeline and the figures of its stages."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from engine.inputs import parse
from engine.job.codes import code_of, in_seconds
from engine.job.shape import Shape, lanes, shape_of
from engine.plan.cell import simulated
from engine.plan.request import PlanRequest
from engine.plan.result import MemoryUse, Option, Partition, StageTime
from engine.simulate import SimulationResult
from engine.simulate.spans import Span
from webapp.common.figures import Column, Figures

MOST_TIMELINE_SPANS = 20_000
MOST_WHAT_IF_SPANS = 3_000  # drawn again with each move of a slider
MOST_STAGES = 120  # that the page lists; the file has them all


def cell_of(
    request: dict[str, Any], option: dict[str, Any] | None, most: int = MOST_TIMELINE_SPANS
) -> SimulationResult | None:
    """One cell of `option`, simulated; None where it has none, or surely more spans than `most`."""
    if option is None or not option.get("feasible"):
        return None
    pipelines = option["pipelines"] // option["dp_cells"]
    if _stages(option) * pipelines * request["job"]["microbatches"] * 3 > most:
        return None
    return simulated(parse(PlanRequest, request), engine_option(option))


def _stages(option: dict[str, Any]) -> int:
    return sum(part["stages"] for part in option["partitions"])


def timeline(request: dict[str, Any], option: dict[str, Any], cell: SimulationResult) -> dict[str, Any]:
    """Lanes, links and predicted spans of a cell of `option`."""
    used = list(dict.fromkeys(part["dc"] for part in option["partitions"]))
    shape = shape_of(
        {
            "datacenters": [{"name": name} for name in used],
            "links": request.get("links", []),
            "cell": {
                "stages": _stages(option),
                "pipelines": option["pipelines"] // option["dp_cells"],
                "dc_of_stage": [
                    used.index(part["dc"]) for part in option["partitions"] for _ in range(part["stages"])
                ],
            },
            "strategy": {"policy": option["policy"]},
        }
    )
    return {
        "dcs": [{"name": name} for name in shape.dcs],
        "lanes": lanes(shape, []),
        "links": list(shape.links),
        "predicted": {
            "iteration_ms": cell.makespan,
            "utilization": option["utilization"],
            "spans": coded(cell.spans(), shape),
        },
    }


def coded(spans: Iterable[Span], shape: Shape) -> list[list[Any]]:
    """[[rank, code…]] of spans whose times are in ms, or in slots, which are drawn as ms."""
    codes: dict[int, list[Any]] = {rank: [rank] for rank in range(shape.ranks)}
    for span in spans:
        stage = span.stage if span.track == "gpu" else span.from_stage
        assert stage is not None
        codes[span.pipeline * shape.stages + stage].append(code_of(in_seconds(span), origin=0.0))
    return list(codes.values())


_EACH_STAGE: dict[str, Callable[[Any], Any]] = {
    "layers_per_stage": int,
    "memory_per_stage": lambda use: MemoryUse(**use),
    "time_per_stage": lambda stage: StageTime(**stage),
}


def engine_option(option: dict[str, Any]) -> Option:
    """An option as kept, as the engine's own."""
    values = {name: option[name] for name in Option.__slots__ if name in option}
    values["partitions"] = tuple(Partition(**part) for part in option["partitions"])
    for name, read in _EACH_STAGE.items():
        if values.get(name) is not None:
            values[name] = tuple(map(read, values[name]))
    return Option(**values)


def stages_table(option: dict[str, Any] | None, cell: SimulationResult | None) -> Figures:
    """Stages of one option in pipeline order, with their data centre and GPUs; with a cell also what they do
    in an iteration, on average over its pipelines."""
    rows: list[dict[str, Any]] = []
    for part in option["partitions"] if option else ():
        each = option["gpus_used"][part["dc"]] / part["stages"] if option else 0
        rows += [{"stage": len(rows) + 1 + k, "dc": part["dc"], "gpus": each} for k in range(part["stages"])]
    layers = (option or {}).get("layers_per_stage")
    if layers is not None:
        rows = [row | {"layers": count} for row, count in zip(rows, layers, strict=True)]
    columns = [
        Column(label="Stage", key="stage", decimals=0),
        Column(label="DC", key="dc"),
        Column(label="GPUs", key="gpus", decimals=0),
    ]
    if layers is not None:
        columns.append(Column(label="Layers", key="layers", decimals=0))
    if option and option.get("recompute"):
        rows = [row | {"again": mode} for row, mode in zip(rows, option["recompute"], strict=True)]
        columns.append(Column(label="Recomputation", key="again"))
    if cell is not None and cell.timeline is not None:
        rows = [row | figures for row, figures in zip(rows, _in_an_iteration(cell), strict=True)]
        columns += [
            Column(label="Busy", key="busy_ms", unit="ms", decimals=1),
            Column(label="Bubbles", key="bubbles", unit="%", decimals=1),
            Column(label="First op", key="first_ms", unit="ms", decimals=1, wide=True),
            Column(label="Last ends", key="last_ms", unit="ms", decimals=1, wide=True),
            Column(label="In flight", key="in_flight", unit="microbatches", decimals=1, wide=True),
        ]
    return Figures(
        name="stages", title="Stages per data centre", rows=rows, columns=columns, most=MOST_STAGES
    )


def _in_an_iteration(cell: SimulationResult) -> list[dict[str, float]]:
    assert cell.timeline is not None
    busy = cell.timeline.busy().mean(axis=0)
    figures = {
        "busy_ms": busy,
        "bubbles": 100 * (1 - busy / cell.timeline.makespan),
        "first_ms": np.nanmin(cell.timeline.op_start, axis=(0, 2)),
        "last_ms": np.nanmax(cell.timeline.op_end, axis=(0, 2)),
        "in_flight": cell.timeline.peak_in_flight().max(axis=0),
    }
    return [
        dict(zip(figures, values, strict=True))
        for values in zip(*(each.tolist() for each in figures.values()), strict=True)
    ]
