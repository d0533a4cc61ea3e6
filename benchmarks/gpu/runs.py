"""Training runs whose ranks share the card: the same losses as on the CPU, overhead, memory, recovery."""

import itertools
import os
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.gpu.report import Cell, Check, Report, Table
from benchmarks.train import train
from engine.inputs import parse
from engine.job.events.event import Event
from engine.job.events.training import Step
from engine.job.job import TrainJob
from engine.job.launch import single_machine
from engine.job.memory import stage_memory
from engine.run.launcher import RankGroup
from engine.schedule.scenario import POLICIES
from engine.train.profiling import ProfileRequest, profile_stage

AT_ONCE = 5  # runs beside each other
# Two pipelines, which sum gradients and share links in time; the others have one, which starts sooner.
IN_CELLS = ("atlas", "auto")
BAR = {"fp32": 1e-4, "fp64": 1e-9, "bf16": 3e-2}  # relative, of losses and gradient norms
LONGEST_RUN_S = 120.0
CELL: dict[str, Any] = {
    "datacenters": [{"name": "north", "gpus": 4}, {"name": "south", "gpus": 2}],
    "links": [{"between": ["north", "south"], "latency_ms": 2, "bandwidth_gbps": 1}],
    "stages": 3,
    "dc_of_stage": [0, 0, 1],
    "pipelines": 2,
    "microbatches": 6,
    "micro_batch": 2,
    "model": {"layers": 6, "hidden": 64, "heads": 4, "seq": 64},
    "steps": 6,
    "lr": 1e-3,
    "seed": 7,
    "time_limit_s": 5,
}


def policies(*, dry: bool) -> Report:
    """Losses and gradient norms of every policy on the card beside those of 1F1B on the CPU."""
    cases = [(policy, "fp32") for policy in POLICIES] + [
        ("atlas", "fp64"),
        ("zb-v", "bf16"),
        ("1f1b", "bf16"),
    ]
    if dry:
        cases = cases[:2]
    plain = {kind: train(_document("1f1b", *kind)) for kind in dict.fromkeys(map(_kind, cases))}
    with ThreadPoolExecutor(AT_ONCE) as pool:
        rows = list(pool.map(lambda one: _compared(*one, plain[_kind(one)], dry), cases))
    report = Report(part="policies")
    worst = {dtype: 0.0 for _, dtype in cases}
    for row in rows:
        worst[str(row[1])] = max(worst[str(row[1])], float(row[2] or 0), float(row[3] or 0))
    for dtype, off in worst.items():
        report.checks.append(
            Check(
                name=f"losses and gradient norms against the CPU, {dtype}",
                value=f"{off:.1e}",
                bar=f"{BAR[dtype]:g}",
                ok=off <= BAR[dtype],
            )
        )
    report.tables.append(
        Table(
            title="Ranks on one card (3; atlas and auto 6) against the CPU, 6 steps: largest difference",
            columns=("policy", "dtype", "losses", "gradient norms", "last loss", "ms an iteration"),
            rows=rows,
        )
    )
    return report


def _kind(case: tuple[str, str]) -> tuple[int, str]:
    """Pipelines and dtype: all policies compute the same with these."""
    policy, dtype = case
    return CELL["pipelines"] if policy in IN_CELLS else 1, dtype


def _document(policy: str, pipelines: int, dtype: str) -> dict[str, Any]:
    return {**CELL, "policy": policy, "pipelines": pipelines, "dtype": dtype}


def _compared(policy: str, dtype: str, plain: dict[str, Any], dry: bool) -> tuple[Cell, ...]:
    document = _document(policy, *_kind((policy, dtype)))
    other = train({**document, **on_card(document["stages"] * document["pipelines"], dry)})
    differs = [off(other[key], plain[key]) for key in ("losses", "grad_norms")]
    row = policy, dtype, *differs, float(other["losses"][-1]), float(other["iteration_ms"]["median"])
    print(*row, f"started in {other['startup_s']} s", file=sys.stderr, flush=True)
    return row


def on_card(ranks: int, dry: bool) -> dict[str, Any]:
    """The device of a job whose ranks share one card."""
    return {"device": "cpu"} if dry else {"device": "cuda", "ranks_per_gpu": ranks}


def off(these: list[float], those: list[float]) -> float:
    """The largest relative difference of two lists of figures."""
    a, b = np.array(these), np.array(those)
    return float(np.max(np.abs(a - b) / np.abs(b)))


def overhead(*, dry: bool) -> Report:
    """What of an iteration on one GPU is neither an op nor the optimizer, by the number of microbatches."""
    wide = {"family": "llama", "layers": 4, "hidden": 2048, "heads": 16, "kv_heads": 8, "seq": 2048}
    small = {"layers": 2, "hidden": 64, "heads": 4, "seq": 64}
    report = Report(part="overhead")
    for microbatches in (8, 32):
        result = train(
            {
                "datacenters": [{"name": "here", "gpus": 1}],
                "stages": 1,
                "microbatches": microbatches,
                "micro_batch": 2,
                "policy": "1f1b",
                "model": small if dry else wide,
                "dtype": "bf16",
                "steps": 12,
                **on_card(1, dry),
            }
        )
        median = result["iteration_ms"]["median"]
        left = 1 - result["utilization"]["measured"] - result["optimizer_ms"] / median
        check = Check(
            name=f"outside of ops and optimizer, {microbatches} microbatches",
            value=f"{left:.2%} of {median:.1f} ms, {left * median:.1f} ms",
            bar="at most 2 %",
            ok=None if dry else left <= 0.02,
        )
        report.checks.append(check)
    return report


def checkpoints(*, dry: bool) -> Report:
    """A run that stops at a checkpoint and goes on, with validation, against one that does not stop."""
    with tempfile.TemporaryDirectory() as folder:
        saves = {"dir": folder, "every": 4}
        document = {
            **CELL,
            "policy": "zb-h1",
            "pipelines": 1,
            "steps": 8,
            "validation": {"every": 4, "sequences": 8},
            **on_card(3, dry),
        }
        whole = train(document)
        train({**document, "steps": 4, "checkpoint": saves})
        resumed = train({**document, "checkpoint": saves, "resume": True})
    after = whole["losses"][4:] if len(resumed["losses"]) == 4 else whole["losses"]
    differs = off(resumed["losses"], after)
    held_out = [[row["loss"] for row in run["validation"]][-1] for run in (resumed, whole)]
    return Report(
        part="checkpoints",
        checks=[
            Check(name="resumed from step", value=str(resumed["resumed_from"])),
            Check(
                name="losses after it against the run that did not stop",
                value=f"{differs:.1e}",
                bar=f"{BAR['fp32']:g}",
                ok=differs <= BAR["fp32"],
            ),
            Check(name="last validation loss, both", value=f"{held_out[0]:.6f}, {held_out[1]:.6f}"),
            Check(
                name="parameters",
                value="equal to the bit" if resumed["params_sha256"] == whole["params_sha256"] else "differ",
            ),
        ],
    )


def memory(*, dry: bool) -> Report:
    """The most that a rank's tensors took beside what the dry run of the site counts."""
    wide = {
        "family": "llama",
        "layers": 4,
        "hidden": 2048,
        "heads": 16,
        "kv_heads": 8,
        "seq": 2048,
        "vocab": 32_000,
    }
    small = {"layers": 4, "hidden": 64, "heads": 4, "seq": 64}
    cases = [(1, False, "bf16"), (1, True, "bf16"), (2, False, "bf16"), (1, False, "fp32")]

    def row(case: tuple[int, bool, str]) -> tuple[Cell, ...]:
        stages, recompute, dtype = case
        document = {
            "datacenters": [{"name": "here", "gpus": stages}],
            "stages": stages,
            "microbatches": 4,
            "policy": "1f1b",
            "recompute": recompute,
            "model": small if dry else wide,
            "dtype": dtype,
            "steps": 2,
            **on_card(len(cases), dry),
        }
        result = train(document)
        counted = max(stage.total_bytes for stage in stage_memory(parse(TrainJob, document))) / 1e9
        peak = result.get("peak_gpu_mb", 0.0) / 1e3
        return stages, "yes" if recompute else "no", dtype, counted, peak, _error(counted, peak)

    with ThreadPoolExecutor(len(cases)) as pool:
        rows = list(pool.map(row, cases))
    table = Table(
        title="Peak memory of tensors, fullest stage",
        columns=("stages", "recompute", "dtype", "counted GB", "measured GB", "error"),
        rows=rows,
        note="counted: the dry run's upper end, without flash attention.",
    )
    return Report(part="memory", tables=[table])


ACTIVATIONS = (
    {"family": "llama", "layers": 2, "hidden": 2048, "heads": 16, "kv_heads": 8, "ffn": 8192},
    {"family": "gpt", "layers": 2, "hidden": 2048, "heads": 16},
)
VOCABULARIES = (32_000, 128_256)


def activations(*, dry: bool) -> Report:
    """The most that one microbatch takes beyond weights and gradients, beside what is counted."""
    small = ({"family": "llama", "layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2},)
    rows = []
    for shape, dtype, recompute, vocab in itertools.product(
        small if dry else ACTIVATIONS, ("bf16", "fp32"), (False, True), (256,) if dry else VOCABULARIES
    ):
        fields = {
            "model": {**shape, "vocab": vocab, "seq": 64 if dry else 2048},
            "device": "cpu" if dry else "cuda",
            "dtype": dtype,
            "recompute": recompute,
            "repeats": 1,
        }
        request = parse(ProfileRequest, fields)
        counted = stage_memory(request.job)[0].activation_bytes / 1e9
        measured = (profile_stage(request, 0).peak_bytes or 0) / 1e9
        how = "yes" if recompute else "no"
        rows.append(
            (
                shape["family"],
                shape["hidden"],
                vocab,
                dtype,
                how,
                counted,
                measured,
                _error(counted, measured),
            )
        )
    table = Table(
        title="One microbatch of two layers, embedding and head, 2,048 tokens: memory beyond gradients",
        columns=("family", "hidden", "vocab", "dtype", "recompute", "counted GB", "measured GB", "error"),
        rows=rows,
    )
    return Report(part="activations", tables=[table])


def _error(counted: float, measured: float) -> str:
    return f"{counted / measured - 1:+.0%}" if measured else "–"


def recovery(*, dry: bool) -> Report:
    """A rank on the card is killed: the run goes on from its peers' memory to the same loss."""
    document = {**CELL, "policy": "1f1b", "steps": 60, "recovery": {}, **on_card(6, dry)}
    whole, _ = _run(document, None)
    hit, events = _run(document, 20)
    lost = [event for event in events if event["kind"] == "recovery"]
    differs = off(hit["losses"], whole["losses"])
    took = [event["t"] - event["noticed"] for event in lost]
    return Report(
        part="recovery",
        checks=[
            Check(name="recoveries after one kill", value=str(len(lost)), bar="1", ok=len(lost) == 1),
            Check(
                name="losses against the run without",
                value=f"{differs:.1e}",
                bar=f"{BAR['fp32']:g}",
                ok=differs <= BAR["fp32"],
            ),
            Check(name="from", value=", ".join(str(event["from"]) for event in lost)),
            Check(name="seconds until all ranks ran again", value=", ".join(f"{s:.1f}" for s in took)),
        ],
    )


def _run(document: dict[str, Any], kill_at: int | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Result and events of a run, one rank of which is killed after so many steps."""
    events: list[dict[str, Any]] = []

    def on_event(event: Event) -> None:
        events.append(event.to_dict())
        if isinstance(event, Step) and event.iteration + 1 == kill_at:
            pids = [e["pid"] for e in events if e["kind"] == "rank" and e["rank"] == 4 and e["pid"]]
            os.kill(pids[-1], signal.SIGKILL)

    with tempfile.TemporaryDirectory() as logs:
        group = RankGroup(single_machine(parse(TrainJob, document), run="gpu", log_dir=logs), on_event)
        group.start()
        try:
            if not group.wait(LONGEST_RUN_S):
                raise TimeoutError(f"the run did not end within {LONGEST_RUN_S:.0f} s")
        finally:
            group.stop(0.0)
    failed = [e["detail"] for e in events if e["kind"] == "rank" and e["state"] == "failed"]
    results = [event for event in events if event["kind"] == "result"]
    if not results:
        raise RuntimeError(f"the run failed: {failed[-1] if failed else 'no result came'}")
    return results[0], events
