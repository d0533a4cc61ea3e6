"""Sailor's measured runs: iteration time and memory by its own profile of the layers; nothing is fitted.

The runs and tables are those of engine/data/sailor. Here `paper` is what the authors measured.
"""

import json
from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from statistics import fmean

from engine.plan.layouts.layout import MeasuredRun, read_runs
from engine.plan.layouts.predict import Prediction, predict, shipped
from engine.reproduce import Experiment, Outcome, Plot, Row, Series

# Largest deviation of one run, and of all runs in the mean.
TIME, MEAN_TIME = 0.30, 0.12
MEMORY, MEAN_MEMORY = 0.10, 0.10
OF_TIME = "22.9 GB/s per GPU between nodes, from the authors' measurements"
OF_MEMORY = "24 bytes per parameter and 5.06 GB for the framework, from the authors' memory model"


@cache
def runs() -> tuple[tuple[MeasuredRun, Prediction], ...]:
    """Each run with its prediction."""
    text = files("engine").joinpath("data/sailor/measured_iterations.json").read_text(encoding="utf-8")
    return tuple((run, predict(run.layout(), shipped())) for run in read_runs(json.loads(text)))


def iteration_time() -> Outcome:
    """The seconds of an iteration of each run."""
    return _compared(
        what="time",
        unit="s",
        measured=lambda run: run.real or 0.0,
        predicted=lambda prediction: prediction.iteration_s,
        tolerances=(TIME, MEAN_TIME),
        assumes=OF_TIME,
    )


def memory() -> Outcome:
    """The gigabytes of the fullest GPU of each run."""
    return _compared(
        what="memory",
        unit="GB",
        measured=lambda run: (run.max_mem or 0.0) / 1e9,
        predicted=lambda prediction: max(prediction.memory_bytes) / 1e9,
        tolerances=(MEMORY, MEAN_MEMORY),
        assumes=OF_MEMORY,
    )


def _compared(
    *,
    what: str,
    unit: str,
    measured: Callable[[MeasuredRun], float],
    predicted: Callable[[Prediction], float],
    tolerances: tuple[float, float],
    assumes: str,
) -> Outcome:
    of_one, of_mean = tolerances
    pairs = [(_name(run), measured(run), predicted(prediction)) for run, prediction in runs()]
    rows = [
        Row(name=f"{name}: {what}", paper=real, ours=ours, unit=unit, tolerance=of_one, assumes=assumes)
        for name, real, ours in pairs
    ]
    mean = Row(
        name=f"mean error of {len(pairs)} runs, {what}",
        paper=0,
        ours=fmean(abs(ours / real - 1) for _, real, ours in pairs),
        unit="of the measured",
        tolerance=of_mean,
        assumes=assumes,
    )
    return Outcome(rows=(*rows, mean), plots=(_plot(what, unit, pairs),))


def _plot(what: str, unit: str, pairs: Sequence[tuple[str, float, float]]) -> Plot:
    numbers = tuple(float(i + 1) for i in range(len(pairs)))
    return Plot(
        name=f"sailor-{what}",
        title=f"Sailor's runs: {what}",
        x_label="run, in the order of the table",
        y_label=unit,
        series=(
            Series(label="measured", x=numbers, y=tuple(real for _, real, _ in pairs)),
            Series(label="ours", x=numbers, y=tuple(ours for _, _, ours in pairs)),
        ),
        kind="bars",
    )


def _name(run: MeasuredRun) -> str:
    """Its shape: what tells the runs apart."""
    layout = run.layout()
    stages = layout.groups[0]
    gpus = sum(replica.tp for stage in stages for replica in stage.replicas)
    depth = f"{len(stages)} stage{'s' if len(stages) > 1 else ''}"
    return f"{gpus} GPUs, {depth} × {layout.pipelines}, batch {run.gbs} in {run.mbs}"


EXPERIMENTS = (
    Experiment(name="sailor-time", title="Sailor: iteration time of 15 measured runs", run=iteration_time),
    Experiment(name="sailor-memory", title="Sailor: memory of 15 measured runs", run=memory),
)
