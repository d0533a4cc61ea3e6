"""The result of a swap run: measurements of the workers, and the planner's prediction."""

from statistics import median
from typing import Any

from engine.job.job import TrainJob
from engine.job.result import measured_part
from engine.job.swap.planned import SwapPlan, predicted_iteration_s
from engine.nn.model import params_sha256
from engine.train.swap.journal import Journal


def result_of(job: TrainJob, plan: SwapPlan, journal: Journal) -> dict[str, Any]:
    """The `Out:` of `meridian train` for strategy swap; a worker that was lost has no part in the figures."""
    stats = [journal.measured[rank] for rank in sorted(journal.measured)]
    # Of those that were there to the end: who left early has older weights and shorter statistics.
    ended = max(stats, key=lambda worker: (worker["last_step"], -worker["rank"]))
    measured = measured_part(job, [ended, *(worker for worker in stats if worker is not ended)])
    saved = [worker["checkpoints"] for worker in stats if worker["checkpoints"]]
    return {
        "steps": len(journal.losses),
        "losses": journal.losses,
        "bits_per_byte": journal.bits,
        "grad_norms": journal.norms,
        "validation": [],
        "params_sha256": params_sha256({int(number): sha for number, sha in ended["digests"].items()}),
        # The planner's iteration is that of the workers of the document: with others there is none.
        **(measured if journal.changes else _simulated(job, plan, measured)),
        "resumed_from": next((w["resumed_from"] for w in stats if w["resumed_from"] is not None), None),
        "checkpoints": _checkpoints(saved) if job.persistence.checkpoint else None,
        "startup_s": max(worker["startup_s"] for worker in stats if worker["rank"] < job.cell.pipelines),
        "swap": _swap(plan, stats, journal),
    }


def _simulated(job: TrainJob, plan: SwapPlan, measured: dict[str, Any]) -> dict[str, Any]:
    """The measured part with the planner's iteration and utilization at the measured all-reduce."""
    if job.device.kind != "emulated" or measured["optimizer_ms"] is None:
        return measured
    step = plan.result.step
    assert step is not None
    simulated_s = predicted_iteration_s(
        job,
        plan,
        allreduce_s=(measured["allreduce_ms"] or 0.0) / 1e3,
        optimizer_s=measured["optimizer_ms"] / 1e3,
    )
    median_ms = measured["iteration_ms"]["median"]
    return {
        **measured,
        "iteration_ms": {**measured["iteration_ms"], "simulated": simulated_s * 1e3},
        "deviation": median_ms / (simulated_s * 1e3) - 1 if median_ms is not None else None,
        "utilization": {
            "measured": measured["utilization"]["measured"],
            "simulated": job.cell.accumulation * step.busy_s / simulated_s,
        },
    }


def _swap(plan: SwapPlan, stats: list[dict[str, Any]], journal: Journal) -> dict[str, Any]:
    """What only a swap run has: its plan, a step of it as measured, and who came and went.

    A step is all sub-models forward and backward for `accumulation` mini-batches; its utilization leaves out
    what is between two steps (all-reduce, optimizer, loading the updated first sub-model).
    """
    planned = plan.result
    step = planned.step
    assert step is not None
    rounds = [(w["round_s"], w["round_busy_s"]) for w in stats if w["round_s"]]
    return {
        "feasible": planned.feasible,
        "reason": planned.reason,
        "sub_models": planned.as_dict()["sub_models"],
        "accumulation": planned.accumulation,
        "loads_per_step": planned.loads_per_step,
        "gradients": planned.gradients,
        "step_ms": {
            "median": 1e3 * median(took for took, _ in rounds) if rounds else None,
            "planned": 1e3 * step.step_s,
        },
        "step_utilization": {
            "measured": median(busy / took for took, busy in rounds) if rounds else None,
            "planned": step.utilization,
        },
        "device_bytes": planned.capacity_bytes,
        "peak_device_bytes": max(worker["peak_device_bytes"] for worker in stats),
        "redone": journal.redone,
        "changes": journal.changes,
    }


def _checkpoints(saved: list[dict[str, Any]]) -> dict[str, Any]:
    last = [each["last_step"] for each in saved if each["last_step"] is not None]
    return {
        "saved": sum(each["saved"] for each in saved),
        "failed": sum(each["failed"] for each in saved),
        "last_step": max(last, default=None),
    }
