"""Answers that no change of structure may alter: ``python -m tests.golden.answers`` records them again.

A case is a command over a document. Its exit status is recorded, and of its JSON every number to nine digits.
Times of searches and texts that people read are left out. Of searches there are only those whose answer is
proven or bounded by a count of work, so that a slow machine answers the same.
"""

import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from engine.cli import cli
from engine.errors import InputError
from engine.schedule.scenario import POLICIES
from tests.runtime.cells import Cell
from tests.runtime.jobs import job

HERE = Path(__file__).parent
ANSWERS = HERE / "answers.json"
EXAMPLES = HERE.parent.parent / "examples"
DIGITS = 9
TEXTS_AND_TIMES = {"reason", "search_s", "search_us", "note", "label", "elapsed_s"}
SEARCHED = ("auto", "optimal")
SHARINGS = ("spatial", "temporal")
CELL: dict[str, Any] = {
    "stages": 4,
    "dc_of_stage": [0, 0, 1, 2],
    "pipelines": 2,
    "microbatches": 4,
    "times": {"forward": [3, 2, 4, 3], "recompute": 2, "backward": 5},
    "wan": [{"latency": 2, "transfer": 3}, {"latency": 1, "transfer": 4}],
}
SPLIT = {"times": {"forward": 3, "backward": 3, "weight": 3}}
PLACE = {
    "latency_ms": [[abs(i - j) * 10.0 for j in range(8)] for i in range(8)],
    "bandwidth_gbps": [[1.0 + (i * j) % 3 for j in range(8)] for i in range(8)],
    "stages": 4,
    "data_parallel": 2,
    "dp_bytes": 1e8,
    "pp_bytes": 1e7,
    "evaluations": 300,
}
TRAINED = [policy for policy in POLICIES if policy not in SEARCHED]


def cases() -> Iterator[tuple[str, Callable[[], Any]]]:
    """Every case by name."""
    for policy in POLICIES:
        if policy not in SEARCHED:
            for sharing in SHARINGS:
                yield (
                    f"simulate {policy} {sharing}",
                    _command("simulate", {**CELL, "policy": policy, "sharing": sharing}),
                )
                yield (
                    f"simulate {policy} {sharing} limit 3",
                    _command("simulate", {**CELL, "policy": policy, "sharing": sharing, "memory_limit": 3}),
                )
    for policy in ("zb-h1", "zb-v", "crosspipe-ud", "crosspipe-wave"):
        yield f"simulate {policy} split", _command("simulate", {**CELL, **SPLIT, "policy": policy})
    small = {
        **CELL,
        **SPLIT,
        "stages": 2,
        "dc_of_stage": [0, 1],
        "wan": {"latency": 1, "transfer": 2},
        "microbatches": 3,
    }
    for sharing in SHARINGS:
        yield f"simulate optimal {sharing}", _proven({**small, "policy": "optimal", "sharing": sharing})
    for name, command in _EXAMPLES.items():
        yield f"{command} examples/{name}", _command(command, EXAMPLES / name)
    for document in sorted((HERE / "cases").rglob("*.json")):
        for command in ("plan",) if document.parent.name == "plan" else ("plan", "network", "swap"):
            yield f"{command} {document.parent.name}/{document.name}", _command(command, document)
    yield "place eight devices", _command("place", PLACE)
    for policy in TRAINED:
        yield f"train {policy}", lambda policy=policy: _trained(policy)


_EXAMPLES = {
    "fig6.json": "simulate",
    "five-dcs.json": "plan",
    "cross-dc.yaml": "cross-dc",
    "network.json": "network",
    "prefill.yaml": "prefill replay",
}


def _command(command: str, document: dict[str, Any] | Path) -> Callable[[], Any]:
    """A command of `meridian` over a document, with --json."""

    def run() -> Any:
        file, text = ("-", json.dumps(document)) if isinstance(document, dict) else (str(document), None)
        call = [*command.split(), file, "--json"]
        done = CliRunner().invoke(cli, call, input=text, standalone_mode=False)
        if isinstance(done.exception, InputError):
            return {"refused": done.exception.field}
        if done.exception is not None:
            raise done.exception
        return {"status": done.return_value or 0, "answer": json.loads(done.stdout)}

    return run


def _proven(document: dict[str, Any]) -> Callable[[], Any]:
    """What is proven of a search: several orders of ops may have the shortest time."""

    def run() -> Any:
        answer = _command("simulate", document)()["answer"]
        return {
            name: answer[name] for name in ("feasible", "makespan", "lower_bound", "optimal", "stopped_by")
        }

    return run


def _trained(policy: str) -> Any:
    """Loss and gradient norms by layer of one iteration of a small job in fp64, without processes."""
    shape = {"layers": 6, "hidden": 16, "heads": 2, "seq": 8}
    answer = Cell(job(policy=policy, model=shape, microbatches=3, dtype="fp64")).run()
    norms = {n: [float(g.norm()) for g in gradients] for n, gradients in sorted(answer.gradients.items())}
    return {"loss": answer.loss, "norms": norms}


def plain(value: Any) -> Any:
    """A JSON value without texts and times, numbers to nine digits."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in sorted(value.items(), key=str) if k not in TEXTS_AND_TIMES}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return float(f"{value:.{DIGITS - 1}e}") if isinstance(value, float) else value


def recorded(value: Any) -> dict[str, Any]:
    """What is kept of an answer: its short figures as they are, and a digest of all."""
    value = plain(value)
    text = json.dumps(value, separators=(",", ":"))
    return {"sha256": hashlib.sha256(text.encode()).hexdigest(), "figures": _figures(value)}


def _figures(value: Any) -> dict[str, Any]:
    """The single values at the top: they say at a glance what changed where a digest differs."""
    answer = value.get("answer", value) if isinstance(value, dict) else value
    short = {k: v for k, v in (answer or {}).items() if isinstance(v, int | float | str | None)}
    return {k: v for k, v in value.items() if k in ("status", "refused")} | short


def main() -> None:
    """Record all answers again."""
    answers = {name: recorded(run()) for name, run in cases()}
    ANSWERS.write_text(json.dumps(answers, indent=1) + "\n")
    print(
        f"{len(answers)} answers, sha256 {hashlib.sha256(ANSWERS.read_bytes()).hexdigest()}", file=sys.stderr
    )


if __name__ == "__main__":
    main()
