"""`meridian predict FILE`: iteration time and memory of given layouts, next to what was measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

import click

from engine.commands.compiled import announce_compilation
from engine.commands.printed import show
from engine.commands.tables import number, render
from engine.documents import load_document
from engine.errors import InputError
from engine.model.layer_profiles import FRAMEWORK_BYTES, read_profiles, read_sizes
from engine.plan.layouts.layout import MeasuredRun, read_runs
from engine.plan.layouts.predict import (
    BETWEEN_NODES_BYTES_PER_S,
    Prediction,
    Tables,
    predict,
    read_bandwidths,
    shipped,
)

GB = 1e9
T = TypeVar("T")
ABOVE_0 = click.FloatRange(min=0, min_open=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compared:
    """A run and its prediction; deviations are ours ÷ measured − 1, None where nothing was measured."""

    run: MeasuredRun
    prediction: Prediction

    @property
    def time_deviation(self) -> float | None:
        return None if self.run.real is None else self.prediction.iteration_s / self.run.real - 1

    @property
    def memory_bytes(self) -> float:
        return max(self.prediction.memory_bytes)

    @property
    def memory_deviation(self) -> float | None:
        return None if self.run.max_mem is None else self.memory_bytes / self.run.max_mem - 1

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.run.name,
            "model": self.run.model,
            "iteration_s": self.prediction.iteration_s,
            "pipelines_s": self.prediction.pipelines_s,
            "allreduce_s": self.prediction.allreduce_s,
            "update_s": self.prediction.update_s,
            "measured_s": self.run.real,
            "deviation": self.time_deviation,
            "memory_bytes": self.memory_bytes,
            "memory_bytes_per_stage": list(self.prediction.memory_bytes),
            "measured_memory_bytes": self.run.max_mem,
            "memory_deviation": self.memory_deviation,
        }


@click.command("predict")
@click.argument("file")
@click.option("--layer-profiles", metavar="FILE", help="Seconds of each layer; default: those of Sailor.")
@click.option("--layer-sizes", metavar="FILE", help="Parameters and activations of each layer.")
@click.option("--intra-node-bandwidths", metavar="FILE", help="Bandwidths inside a node.")
@click.option(
    "--between-nodes-gb-s",
    type=ABOVE_0,
    default=BETWEEN_NODES_BYTES_PER_S / GB,
    show_default=True,
    help="Bandwidth between nodes, per GPU and direction.",
)
@click.option(
    "--framework-gb",
    type=click.FloatRange(min=0),
    default=FRAMEWORK_BYTES / GB,
    show_default=True,
    help="Memory that CUDA, NCCL and the framework take on each GPU.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
def command(
    file: str,
    layer_profiles: str | None,
    layer_sizes: str | None,
    intra_node_bandwidths: str | None,
    between_nodes_gb_s: float,
    framework_gb: float,
    as_json: bool,
) -> None:
    """Predict the iteration time and memory of given layouts from measured layers.

    FILE (JSON or YAML, - for standard input) is a run, or a list of them, as Sailor's measurements are
    written: model, mbs, gbs, pipeline_list [{layers_per_stage, tmp_per_stage}], and, if measured, real
    (seconds) and max_mem (bytes).
    """
    tables = _tables(layer_profiles, layer_sizes, intra_node_bandwidths)
    tables = replace(
        tables,
        network=replace(tables.network, between_nodes=between_nodes_gb_s * GB),
        framework_bytes=framework_gb * GB,
    )
    document = load_document(file)
    runs = read_runs(document)
    announce_compilation()
    compared = [
        _compared(run, tables, f"[{i}]." if isinstance(document, list) else "") for i, run in enumerate(runs)
    ]
    show(as_json, lambda: _answer(compared), lambda: _lines(compared))


def _tables(layer_profiles: str | None, layer_sizes: str | None, bandwidths: str | None) -> Tables:
    """The shipped tables, with those in their place that the options name."""
    tables = shipped()
    if layer_profiles is not None:
        tables = replace(tables, profiles=_read(read_profiles, layer_profiles, "--layer-profiles"))
    if layer_sizes is not None:
        tables = replace(tables, sizes=_read(read_sizes, layer_sizes, "--layer-sizes"))
    if bandwidths is not None:
        inside = _read(read_bandwidths, bandwidths, "--intra-node-bandwidths")
        tables = replace(tables, network=replace(tables.network, inside_nodes=inside))
    return tables


def _read(read: Callable[[Any], T], file: str, option: str) -> T:
    try:
        return read(load_document(file))
    except InputError as error:
        field = f"{option} {error.field}" if error.field not in ("", "FILE") else option
        raise InputError(field, error.value, error.allowed) from None


def _compared(run: MeasuredRun, tables: Tables, at: str) -> _Compared:
    try:
        return _Compared(run=run, prediction=predict(run.layout(), tables))
    except InputError as error:
        raise InputError(f"{at}{error.field}", error.value, error.allowed) from None


def _answer(compared: Sequence[_Compared]) -> dict[str, Any]:
    return {
        "runs": [one.as_dict() for one in compared],
        "time": _summary([one.time_deviation for one in compared]),
        "memory": _summary([one.memory_deviation for one in compared]),
    }


def _summary(deviations: Sequence[float | None]) -> dict[str, float] | None:
    """Mean and worst of the absolute deviations of what was measured; None if nothing was."""
    known = [abs(deviation) for deviation in deviations if deviation is not None]
    return {"mean": fmean(known), "worst": max(known)} if known else None


def _lines(compared: Sequence[_Compared]) -> list[str]:
    head = [
        "run",
        "iteration\ns",
        "measured\ns",
        "deviation\n%",
        "all-reduce\ns",
        "memory\nGB",
        "measured\nGB",
        "deviation\n%",
    ]
    lines = render(head, [_row(i, one) for i, one in enumerate(compared)], left=(0,))
    summaries = [
        f"{what}: mean deviation {100 * summary['mean']:.1f} %, worst {100 * summary['worst']:.1f} %"
        for what in ("time", "memory")
        if (summary := _answer(compared)[what]) is not None
    ]
    return [*lines, "", *summaries] if summaries else lines


def _row(index: int, one: _Compared) -> list[str | None]:
    run, prediction = one.run, one.prediction
    return [
        run.name or f"[{index}]",
        number(prediction.iteration_s, 4),
        number(run.real, 4),
        _percent(one.time_deviation),
        number(prediction.allreduce_s, 4),
        number(one.memory_bytes / GB, 2),
        None if run.max_mem is None else number(run.max_mem / GB, 2),
        _percent(one.memory_deviation),
    ]


def _percent(deviation: float | None) -> str | None:
    return None if deviation is None else f"{100 * deviation:+.1f}"
