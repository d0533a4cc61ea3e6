"""Rules between the fields of a job of strategy swap. Each raises InputError at the field."""

from itertools import combinations
from typing import Any

from engine.errors import InputError
from engine.inputs import Document
from engine.job.fields import JobFields
from engine.job.swap.settings import STRATEGY, SwapSettings

# Fields that say how a pipeline runs. They keep their defaults: what a field would say, nobody would do.
_OF_PIPELINES = {
    "stages": "must be left out or 1: a worker holds the whole model",
    "tp": "must be left out or 1: a worker computes alone",
    "policy": "must be left out: the order is that of ATOM",
    "dc_of_stage": "must be left out: devices places the workers",
    "chunks": "must be left out: the planner cuts the model into sub-models",
    "cells": "must be left out: workers do not share links",
    "sharing": "must be left out: only the all-reduce crosses links",
    "activation_bytes": "must be left out: no activation crosses a link",
    "memory_limit": "must be left out: swap.gpu.memory_bytes is the limit",
    "full_limit": "must be left out: swap.gpu.memory_bytes is the limit",
    **dict.fromkeys(
        ("contention", "recompute_rule", "traversal", "schedule", "time_limit_s"),
        "must be left out: it belongs to schedules of pipelines",
    ),
}
_NOT_BUILT = {
    "validation": "not available with strategy swap",
    "recovery": "must be left out: a swap run continues without a lost worker",
}


def check(job: JobFields) -> None:
    """Raise InputError for what makes no sense with strategy swap, by the name of the field."""
    for name, allowed in {**_OF_PIPELINES, **_NOT_BUILT}.items():
        default = {"stages": 1, "policy": STRATEGY}.get(
            name, type(job).model_fields[name].get_default(call_default_factory=True)
        )
        if getattr(job, name) != default:
            raise InputError(name, _plain(getattr(job, name)), allowed)
    if not job.recompute:
        allowed = "must be true: activations of a sub-model are gone when its backward pass runs"
        raise InputError("recompute", job.recompute, allowed)
    settings = job.swap
    if settings is None:
        raise InputError(
            "swap", None, "required with strategy swap: {gpu: {memory_bytes, host_to_device_gb_s}}"
        )
    if settings.gpu.tflops is not None:
        allowed = "must be left out: times_ms gives the time of a mini-batch"
        raise InputError("swap.gpu.tflops", settings.gpu.tflops, allowed)
    _check_gpus(job)
    _check_changes(job, settings)


def check_links(job: JobFields) -> None:
    """Raise InputError where two data centres with workers have no link: whoever is left forms the ring."""
    sites = sorted({dc for (dc,) in job.dcs_of_pipeline})
    for a, b in combinations(sites, 2):
        if job.link_between(a, b) is None:
            names = [job.datacenters[dc].name for dc in (a, b)]
            allowed = f"workers are in {names[0]} and {names[1]}, but no link joins them"
            raise InputError("links", [link.between for link in job.links], allowed)


def _check_gpus(job: JobFields) -> None:
    gpus = sum(dc.gpus for dc in job.datacenters)
    if job.pipelines > gpus:
        raise InputError("pipelines", job.pipelines, f"workers, one per GPU: the data centres have {gpus}")


def _check_changes(job: JobFields, settings: SwapSettings) -> None:
    gpus = sum(dc.gpus for dc in job.datacenters)
    for index, joins in enumerate(settings.joins):
        if joins.device >= gpus:
            raise InputError(f"swap.joins[{index}].device", joins.device, f"one of devices 0 to {gpus - 1}")
    known = job.pipelines + len(settings.joins)
    came = [0] * job.pipelines + [joins.after_step for joins in settings.joins]
    gone: set[int] = set()
    for index, leaves in enumerate(settings.leaves):
        field = f"swap.leaves[{index}].worker"
        if leaves.worker >= known:
            raise InputError(field, leaves.worker, f"one of workers 0 to {known - 1}")
        if leaves.worker in gone:
            raise InputError(field, leaves.worker, "leaves twice")
        if leaves.after_step <= came[leaves.worker]:
            allowed = f"more than {came[leaves.worker]}, after which it joins"
            raise InputError(f"swap.leaves[{index}].after_step", leaves.after_step, allowed)
        gone.add(leaves.worker)
    _check_never_empty(settings, came)


def _check_never_empty(settings: SwapSettings, came: list[int]) -> None:
    for index, leaves in enumerate(settings.leaves):
        there = sum(step <= leaves.after_step for step in came)
        left = sum(other.after_step <= leaves.after_step for other in settings.leaves)
        if left >= there:
            raise InputError(f"swap.leaves[{index}]", leaves.model_dump(), "leaves no worker to train")


def _plain(value: Any) -> Any:
    return value.model_dump() if isinstance(value, Document) else value
