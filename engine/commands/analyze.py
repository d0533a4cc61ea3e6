"""`meridian analyze TRACE`: where the time of a run went that was measured, here or elsewhere."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from engine.analyze.formats import load
from engine.analyze.result import analyze
from engine.analyze.what_if import what_if
from engine.commands.compiled import announce_compilation, announce_replay_compilation
from engine.commands.printed import show
from engine.commands.tables import number, render

MOST_WORKERS_SHOWN = 8
MOST_PATH_SHOWN = 12


@click.command("analyze")
@click.argument("trace", type=click.Path(path_type=Path))
@click.option("--meta", type=click.Path(path_type=Path), help="Layout of a parquet trace (YAML).")
@click.option(
    "--what-if",
    "questions",
    multiple=True,
    metavar="QUESTION",
    help="equal-workers, stages=1,1,0.8, policy=NAME or link=LATENCY,TRANSFER (s). Can be repeated.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
def command(trace: Path, meta: Path | None, questions: tuple[str, ...], as_json: bool) -> None:
    """Say where the time of a measured run went.

    TRACE is a file of spans (of `meridian train --spans`, or an answer of `meridian simulate --json`), a
    Chrome trace with an event for each op, a folder with the profiles of all ranks by torch.profiler, or a
    parquet file of ByteDance's StragglerAnalysis, whose layout --meta names.

    The answer has the utilization and the bubbles, and replays the steps: as measured without launch
    delays, and ideal, where every op takes what its kind takes on average. Slowdowns are those of the ideal
    steps with one kind of op, stage, replica or worker as measured.
    """
    announce_replay_compilation()
    loaded = load(trace, meta)
    answer = analyze(loaded).as_dict()
    if questions:
        announce_compilation()
        answer["what_if"] = [what_if(loaded, question).as_dict() for question in questions]
    show(as_json, lambda: answer, lambda: lines(answer))


def lines(answer: dict[str, Any]) -> Iterator[str]:
    """The readable answer, line by line."""
    layout = answer["layout"]
    yield (
        f"{answer['ops']:,} ops of {answer['workers']} workers ({layout['replicas']} replicas x "
        f"{layout['stages']} stages) in {answer['steps']} steps, format {answer['format']}"
    )
    yield ""
    yield f"step                {_seconds(answer['step_s'])} (mean)"
    if answer["no_delay_step_s"] is not None:
        yield f"without delays      {_seconds(answer['no_delay_step_s'])}{_times(answer['launch_slowdown'])}"
        yield f"ideal               {_seconds(answer['ideal_step_s'])}{_times(answer['slowdown'])}"
    yield f"utilization         {100 * answer['utilization']:.1f} %"
    bubbles = answer["bubbles"]
    yield f"bubbles             {100 * bubbles['fraction']:.1f} %, {bubbles['total_s']:,.1f} s of all workers"
    if answer["slowdown"] is not None:
        yield from _slowdowns(answer)
        yield from _path(answer["critical_path"])
    yield from _what_ifs(answer.get("what_if", []))
    for note in answer["notes"]:
        yield ""
        yield note


def _what_ifs(answers: list[dict[str, Any]]) -> Iterator[str]:
    rows = [
        (
            one["what_if"],
            _seconds(one["base_s"]),
            None if one["step_s"] is None else _seconds(one["step_s"]),
            number(one["speedup"], 3),
            None if one["utilization"] is None else f"{100 * one['utilization']:.1f} %",
        )
        for one in answers
    ]
    if rows:
        yield ""
        yield from render(("what if", "base", "then", "speed-up", "utilization"), rows, left=(0,))
    yield from (f"{one['what_if']}: {one['reason']}" for one in answers if one["reason"])


def _seconds(value: float) -> str:
    return f"{value:.4g} s" if value >= 1 else f"{1000 * value:.4g} ms"


def _times(slowdown: float | None) -> str:
    return "" if slowdown is None else f"  (slowdown {slowdown:.3f})"


def _slowdowns(answer: dict[str, Any]) -> Iterator[str]:
    rows = []
    for what in ("op", "stage", "replica", "worker"):
        slowest_first = sorted(answer[f"slowdown_by_{what}"].items(), key=lambda row: -row[1])
        rows += [(what, name, f"{value:.4f}") for name, value in slowest_first[:MOST_WORKERS_SHOWN]]
    yield ""
    yield "Slowdown of the ideal step with these as measured (workers as replica,stage):"
    yield from render(("what", "which", "slowdown"), rows, left=(0, 1))
    slowest = answer["slowest_workers"]
    if slowest["explained"] is not None:
        yield ""
        names = "; ".join(slowest["workers"][:MOST_WORKERS_SHOWN])
        yield f"{100 * slowest['explained']:.1f} % of the lost time goes with the slowest workers ({names}),"
        yield f"{100 * answer['last_stage']['explained']:.1f} % with the last stage."


def _path(path: list[dict[str, Any]]) -> Iterator[str]:
    sums: dict[tuple[str, int, int], tuple[int, float]] = {}
    for run in path:
        key = run["op"], run["replica"], run["stage"]
        ops, seconds = sums.get(key, (0, 0.0))
        sums[key] = ops + run["ops"], seconds + run["end_s"] - run["start_s"]
    longest = sorted(sums.items(), key=lambda item: -item[1][1])[:MOST_PATH_SHOWN]
    step_s = path[-1]["end_s"]
    rows = [
        (op, str(replica), str(stage), str(ops), _seconds(seconds), f"{100 * seconds / step_s:.1f} %")
        for (op, replica, stage), (ops, seconds) in longest
    ]
    yield ""
    yield f"Critical path of step {path[0]['step']}, the median without delays:"
    yield from render(("op", "replica", "stage", "ops", "time", "share"), rows, left=(0,))
