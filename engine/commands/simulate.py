"""`meridian simulate FILE`: what one schedule of one scenario would do, and how good that is."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import click

from engine.commands.compiled import announce_compilation
from engine.errors import InputError
from engine.inputs import load_document, parse
from engine.schedule.scenario import Scenario
from engine.simulate import SimulationResult, simulate
from engine.simulate.grid import time_grid
from engine.simulate.timeline import Timeline
from engine.simulate.trace import chrome_trace


@click.command("simulate")
@click.argument("file")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for result.json and trace.json.")
def command(file: str, as_json: bool, out: Path | None) -> None:
    """Simulate one pipeline schedule on one DP-cell.

    FILE (JSON or YAML, - for standard input) is a scenario in abstract time units: stages, dc_of_stage,
    pipelines, microbatches, times {forward, backward, recompute, weight}, wan and lan {latency, transfer},
    sharing, memory_limit, full_limit, contention, recompute_rule, and policy: gpipe, 1f1b, varuna or atlas.

    --out writes the answer and a trace that Perfetto and chrome://tracing open.
    """
    scenario = parse(Scenario, load_document(file))
    announce_compilation()
    result = simulate(scenario)
    if out is not None:
        _write(result, out)
    if as_json:
        click.echo(json.dumps(result.as_dict(), allow_nan=False))
    else:
        click.echo("\n".join(lines(result, shutil.get_terminal_size().columns)))


def lines(result: SimulationResult, width: int) -> Iterator[str]:
    """The readable answer, line by line, with a grid of the schedule where it fits into `width` columns."""
    scenario, timeline = result.scenario, result.timeline
    dcs = len(set(scenario.dcs))
    yield (
        f"{scenario.policy} on {scenario.stages} stages in {dcs} DC{'s' if dcs > 1 else ''}, "
        f"{scenario.pipelines} pipeline{'s' if scenario.pipelines > 1 else ''}, "
        f"{scenario.microbatches} microbatches; {result.rules.sharing} WAN sharing, "
        f"recompute {result.rules.recompute}"
    )
    if timeline is None:
        yield f"infeasible: {result.reason}"
        return
    yield ""
    yield from _figures(result, timeline)
    grid = time_grid(timeline, width)
    if grid:
        yield ""
        yield "One column per time unit: F, R, B begin an op, digits are its microbatch, · is idle."
        yield grid


def _figures(result: SimulationResult, timeline: Timeline) -> Iterator[str]:
    count, mean = timeline.bubbles()
    idle = float((count * mean).sum() / max(1, count.sum()))
    peak = timeline.peak_in_flight()
    above = f"at most {100 * (result.gap or 0):.1f} % above the best possible"
    verdict = "proven optimal" if result.optimal else above
    yield f"makespan            {timeline.makespan:.6g}"
    yield f"proven lower bound  {result.lower_bound:.6g}  ({verdict})"
    yield f"utilization         {100 * timeline.utilization():.1f} %"
    bubbles = 100 - 100 * timeline.utilization()
    yield f"bubbles             {bubbles:.1f} %, {count.sum()} of mean length {idle:.4g}"
    yield f"largest stage span  {timeline.stage_spans().max():.6g}"
    yield f"peak in flight      {peak.max()} microbatches a stage"


def _write(result: SimulationResult, out: Path) -> None:
    """Writes the answer and its trace.

    Raises
    ------
    InputError
        The folder cannot be made or written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "result.json").write_text(json.dumps(result.as_dict(), allow_nan=False), encoding="utf-8")
        trace = chrome_trace(result.spans(), unit="slot")
        (out / "trace.json").write_text(json.dumps(trace, allow_nan=False), encoding="utf-8")
    except OSError as error:
        raise InputError("--out", str(out), f"cannot be written ({error.strerror})") from None
