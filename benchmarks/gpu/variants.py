"""Kinds of training beside a plain pipeline: the same losses and gradient norms on GPUs as on the CPU.

Those of `variants` share one card. Those of `gpus` need two, a card for each rank: NCCL refuses to share.
"""

import dataclasses
import os
import socket
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.gpu.report import Cell, Check, Report, Table
from benchmarks.gpu.runs import AT_ONCE, BAR, CELL, LONGEST_RUN_S, off, on_card
from benchmarks.train import EXAMPLES, train
from engine.inputs import parse
from engine.job.events.event import Event
from engine.job.job import TrainJob
from engine.job.launch import LOCALHOST, single_machine
from engine.job.module_access import MODULES
from engine.run.launcher import RankGroup

Document = dict[str, Any]
HERE = {"datacenters": [{"name": "here", "gpus": 4}], "links": [], "dc_of_stage": [], "policy": "1f1b"}
ONE_STAGE: Document = {**CELL, **HERE, "stages": 1, "pipelines": 2}
OWN = {"hidden": 64, "vocab": 256, "layers": 6}
# By name; what is a variant of the sums has four replicas, in domains of two.
ON_ONE: dict[str, Document] = {
    "ZeRO-1": {**ONE_STAGE, "zero": 1},
    "hierarchical all-reduce": {
        **ONE_STAGE,
        "pipelines": 4,
        "datacenters": [{"name": "here", "gpus": 4, "hb_domain": 2}],
        "all_reduce": "hierarchical",
    },
    "sharded all-reduce": {**ONE_STAGE, "pipelines": 4, "all_reduce": "sharded"},
    "a package's own module": {
        **CELL,
        "pipelines": 1,
        "policy": "zb-v",
        "model": {"module": "own_blocks:parts", "arguments": OWN, "layers": 6, "hidden": 64, "seq": 64},
    },
}
ON_TWO: dict[str, Document] = {
    **{
        f"messages by NCCL, {policy}": {**CELL, **HERE, "stages": 2, "pipelines": 1, "policy": policy}
        for policy in ("1f1b", "interleaved", "zb-v")
    },
    "gradients by NCCL": ONE_STAGE,
    "ZeRO-1 by NCCL": {**ONE_STAGE, "zero": 1},
    "tensor parallelism of 2": {**ONE_STAGE, "pipelines": 1, "tp": 2},
}


def variants(*, dry: bool) -> Report:
    """ZeRO-1, kinds of the all-reduce, an own module, two machines: with ranks that share the card."""
    os.environ[MODULES] = "own_blocks"
    os.environ["PYTHONPATH"] = os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])
    cases: list[tuple[str, Document, Callable[[Document], Document]]] = [
        (name, document, train) for name, document in ON_ONE.items()
    ]
    cases.append(("two machines", {**CELL, "policy": "1f1b", "pipelines": 1}, two_machines))

    def row(one: tuple[str, Document, Callable[[Document], Document]]) -> tuple[Cell, ...]:
        name, document, run = one
        ranks = document["stages"] * document["pipelines"]
        return _row(name, train(document), run({**document, **on_card(ranks, dry)}))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = list(pool.map(row, cases))
    return _report("variants", "Ranks that share one card against the CPU, 6 steps", rows)


def gpus(*, dry: bool) -> Report:
    """Messages, gradients and tensor parallelism by NCCL, one run after the other on two GPUs."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        plain = list(pool.map(train, ON_TWO.values()))
    rows = [
        _row(name, expected, train({**document, "device": "cpu" if dry else "cuda"}))
        for (name, document), expected in zip(ON_TWO.items(), plain, strict=True)
    ]
    return _report("gpus", "Ranks with a GPU each against the CPU, 6 steps", rows)


def two_machines(document: Document) -> Document:
    """The result of a run whose last rank is on another machine: two host processes, as agents start them."""
    results: list[Document] = []
    failures: list[str] = []

    def on_event(event: Event) -> None:
        values = event.to_dict()
        if values["kind"] == "result":
            results.append(values)
        if values["kind"] == "rank" and values["state"] == "failed":
            failures.append(str(values["detail"]))

    with tempfile.TemporaryDirectory() as logs:
        spec = single_machine(parse(TrainJob, document), run="gpu", log_dir=logs)
        with socket.socket() as free:
            free.bind((LOCALHOST, 0))
            spec = dataclasses.replace(spec, rendezvous_port=free.getsockname()[1])
        *first, last = spec.local
        groups = [
            RankGroup(dataclasses.replace(spec, local=local, log_dir=str(Path(logs) / str(i))), on_event)
            for i, local in enumerate((tuple(first), (last,)))
        ]
        for group in groups:
            group.start()
        try:
            ended = all(group.wait(LONGEST_RUN_S) for group in groups)
        finally:
            for group in groups:
                group.stop(0.0)
    if not ended or not results:
        raise RuntimeError(
            f"the run on two machines failed: {failures[-1] if failures else 'it did not end'}"
        )
    return results[0]


def _row(name: str, expected: Document, result: Document) -> tuple[Cell, ...]:
    backends = ", ".join(dict.fromkeys(hop["backend"] for hop in result["hops"])) or "–"
    differs = [off(result[key], expected[key]) for key in ("losses", "grad_norms")]
    row = name, backends, *differs, float(result["iteration_ms"]["median"])
    print(*row, f"started in {result['startup_s']} s", file=sys.stderr, flush=True)
    return row


def _report(part: str, title: str, rows: list[tuple[Cell, ...]]) -> Report:
    checks = []
    for name, _, *differs, _ in rows:
        worst = max(float(one or 0) for one in differs)
        bar = BAR["fp32"]
        checks.append(
            Check(name=f"{name}, against the CPU", value=f"{worst:.1e}", bar=f"{bar:g}", ok=worst <= bar)
        )
    columns = ("kind", "messages by", "losses", "gradient norms", "ms an iteration")
    return Report(part=part, checks=checks, tables=[Table(title=title, columns=columns, rows=rows)])
