"""`meridian simulate FILE`: times of schedules of one scenario, and their distance from the best possible."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from engine.commands.compared import comparison, write_all
from engine.commands.compiled import announce_compilation
from engine.commands.files import folder
from engine.commands.layer_tables import with_tables
from engine.commands.printed import show
from engine.commands.reports import write_megatron, write_result, write_torch
from engine.documents import load_document
from engine.errors import InputError
from engine.inputs import parse
from engine.schedule import Schedule
from engine.schedule.contention import contention_name
from engine.schedule.registry import NAMES, name_of
from engine.schedule.scenario import BEST, POLICIES, Scenario
from engine.schedule.text import parse_schedule
from engine.simulate import SimulationResult, compare, simulate, simulate_schedule
from engine.simulate.grid import time_grid
from engine.simulate.timeline import Timeline


@click.command(
    "simulate", epilog="Policies: " + "; ".join(f"{policy} ({NAMES[policy]})" for policy in POLICIES) + "."
)
@click.argument("file")
@click.option("--compare", "policies", metavar="P1,P2,…", help="Compare these policies, or 'all'.")
@click.option(
    "--schedule", "schedule_file", metavar="TEXT", help="Time the schedule in this file (see --out)."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Folder for result.json, spans.csv, schedule.txt and a trace that Perfetto opens.",
)
@click.option(
    "--torch",
    "torch_out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder for pipeline0.csv, pipeline1.csv, …: the orders for torch.distributed.pipelining.",
)
@click.option(
    "--megatron",
    "megatron_out",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Folder for arguments.txt and config.json: the settings under which Megatron-LM runs this order.",
)
def command(
    file: str,
    policies: str | None,
    schedule_file: str | None,
    as_json: bool,
    out: Path | None,
    torch_out: Path | None,
    megatron_out: Path | None,
) -> None:
    """Simulate pipeline schedules on one DP-cell.

    FILE (JSON or YAML, - for standard input) is a scenario in abstract time units: stages, dc_of_stage,
    pipelines, microbatches, times {forward, backward, recompute, weight} or
    {layer_profiles, model, gpu, micro_batch, tp, layers_per_stage}, wan and lan {latency, transfer},
    sharing, sends, memory_limit, full_limit, contention, recompute_rule, chunks, traversal, jitter, seed,
    time_limit_s and policy.
    """
    document = with_tables(load_document(file), ("times", "layer_profiles"))
    if policies is not None and schedule_file is not None:
        raise InputError("--schedule", schedule_file, "not together with --compare")
    for option, given in (("--torch", torch_out), ("--megatron", megatron_out)):
        if policies is not None and given is not None:
            raise InputError(option, str(given), "not together with --compare")
    announce_compilation()
    if policies is not None:
        _compare(document, policies, as_json, out)
        return
    result = _simulate(document, schedule_file)
    if out is not None:
        write_result(result, folder(out))
    if torch_out is not None:
        write_torch(result, torch_out)
    if megatron_out is not None:
        write_megatron(result, megatron_out)
    show(as_json, result.as_dict, lambda: lines(result, shutil.get_terminal_size().columns))


def _simulate(document: Any, schedule_file: str | None) -> SimulationResult:
    if schedule_file is None:
        return simulate(parse(Scenario, document))
    if isinstance(document, dict):  # the schedule is given: no policy is used
        document = {**document, "policy": document.get("policy", POLICIES[0])}
    return simulate_schedule(parse(Scenario, document), _schedule(schedule_file))


def _schedule(file: str) -> Schedule:
    try:
        return parse_schedule(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        raise InputError("--schedule", file, "cannot be read") from None
    except ValueError as error:
        raise InputError("--schedule", file, str(error)) from None


def _compare(document: Any, policies: str, as_json: bool, out: Path | None) -> None:
    if not isinstance(document, dict):
        raise InputError("document", document, "must be an object with named fields")
    names = POLICIES if policies == "all" else tuple(filter(None, map(str.strip, policies.split(","))))
    compared = list(compare(document, names))
    if out is not None:
        write_all(compared, folder(out))
    show(as_json, lambda: {"results": [row.as_dict() for row in compared]}, lambda: comparison(compared))


def lines(result: SimulationResult, width: int) -> Iterator[str]:
    """The readable answer, line by line, with a grid of the schedule where it fits into `width` columns."""
    scenario, timeline = result.scenario, result.timeline
    dcs = len(set(scenario.dcs))
    policy = result.chosen.policy if result.chosen and scenario.policy != "auto" else scenario.policy
    yield (
        f"{name_of(policy)} on {scenario.stages} stages in {dcs} DC{'s' if dcs > 1 else ''}, "
        f"{scenario.pipelines} pipeline{'s' if scenario.pipelines > 1 else ''}, "
        f"{scenario.microbatches} microbatches{_choices(result)}"
    )
    if timeline is None:
        yield f"infeasible: {result.reason}"
        return
    yield ""
    yield from _figures(result, timeline)
    grid = time_grid(timeline, width)
    if grid:
        yield ""
        yield "One column per time unit: F, R, B, W begin an op, digits are its microbatch, · is idle."
        yield grid


def _choices(result: SimulationResult) -> str:
    chosen = result.chosen
    if chosen is None:
        return ""
    parts = [f"{chosen.sharing} WAN sharing"]
    if chosen.chunks > 1:
        parts.insert(0, f"{chosen.traversal} of {chosen.chunks} chunks a stage")
    if chosen.contention and result.scenario.contention == BEST:
        parts.append(f"links {contention_name(chosen.contention)}")
    if chosen.recompute_rule and np.any(result.scenario.times.recompute):
        parts.append(f"recompute {chosen.recompute_rule}")
    return "; " + ", ".join(parts)


def _figures(result: SimulationResult, timeline: Timeline) -> Iterator[str]:
    count, mean = timeline.bubbles()
    idle = float((count * mean).sum() / max(1, count.sum()))
    above = f"at most {100 * (result.gap or 0):.1f} % above the best possible"
    verdict = "proven optimal" if result.optimal else above
    yield f"makespan            {timeline.makespan:.6g}"
    yield f"proven lower bound  {result.lower_bound:.6g}  ({verdict})"
    if result.stopped_by:
        idea = f"; {result.chosen.idea}" if result.chosen and result.chosen.idea else ""
        yield f"search              {result.search_s:.2f} s, stopped: {result.stopped_by}{idea}"
    yield f"utilization         {100 * timeline.utilization():.1f} %"
    bubbles = 100 - 100 * timeline.utilization()
    yield f"bubbles             {bubbles:.1f} %, {count.sum()} of mean length {idle:.4g}"
    yield f"largest stage span  {timeline.stage_spans().max():.6g}"
    yield f"peak in flight      {timeline.peak_in_flight().max():g} microbatches a stage"
    if result.planned_makespan is not None:
        yield f"without jitter      {result.planned_makespan:.6g}"
    if result.robustness:
        drawn = result.robustness
        yield (
            f"over {drawn.draws} draws      mean {drawn.mean:.6g}, 95 % within {drawn.p95:.6g}, "
            f"worst {drawn.worst:.6g}"
        )
