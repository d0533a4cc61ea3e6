"""Rules between the fields of a job of strategy swap. Each raises InputError at the field."""

from itertools import combinations
from operator import attrgetter

from engine.errors import InputError
from engine.job.fields import JobFields
from engine.job.model_document import ConfigModel, ModuleModel
from engine.job.sections.cell import CellSection
from engine.job.sections.strategy import SwapStrategy

# Fields that say how a pipeline runs. They keep their defaults: what a field would say, nobody would do.
_OF_PIPELINES = {
    "stages": "must be left out or 1: a worker holds the whole model",
    "tp": "must be left out or 1: a worker computes alone",
    "zero": "must be left out or 0: a worker keeps all of the optimizer's state",
    "dc_of_stage": "must be left out: devices places the workers",
    "cells": "must be left out: workers do not share links",
    "activation_bytes": "must be left out: no activation crosses a link",
}
_NOT_BUILT = {
    "data.validation": "not available with strategy swap",
    "failures.recovery": "must be left out: a swap run continues without a lost worker",
}


def check(job: JobFields, settings: SwapStrategy) -> None:
    """Raise InputError for what makes no sense with strategy swap, by the name of the field."""
    for name, allowed in _OF_PIPELINES.items():
        field, value = CellSection.model_fields[name], getattr(job.cell, name)
        if value != (1 if name == "stages" else field.get_default(call_default_factory=True)):
            raise InputError(f"cell.{name}", value, allowed)
    for path, allowed in _NOT_BUILT.items():
        unavailable = attrgetter(path)(job)
        if unavailable is not None:
            raise InputError(path, unavailable.model_dump(), allowed)
    if not job.cell.recompute:
        allowed = "must be true: activations of a sub-model are gone when its backward pass runs"
        raise InputError("cell.recompute", job.cell.recompute, allowed)
    if settings.gpu.tflops is not None:
        allowed = "must be left out: times_ms gives the time of a mini-batch"
        raise InputError("strategy.gpu.tflops", settings.gpu.tflops, allowed)
    if isinstance(job.model, ConfigModel):
        allowed = "not available with strategy swap, which trains the families gpt and llama of our own"
        raise InputError("model.config", job.model.config["model_type"], allowed)
    if isinstance(job.model, ModuleModel):
        allowed = "not available with strategy swap, which trains the families gpt and llama of our own"
        raise InputError("model.module", job.model.module, allowed)
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
    if job.cell.pipelines > gpus:
        raise InputError(
            "cell.pipelines", job.cell.pipelines, f"workers, one per GPU: the data centres have {gpus}"
        )


def _check_changes(job: JobFields, settings: SwapStrategy) -> None:
    gpus = sum(dc.gpus for dc in job.datacenters)
    for index, joins in enumerate(settings.joins):
        if joins.device >= gpus:
            raise InputError(
                f"strategy.joins[{index}].device", joins.device, f"one of devices 0 to {gpus - 1}"
            )
    known = job.cell.pipelines + len(settings.joins)
    came = [0] * job.cell.pipelines + [joins.after_step for joins in settings.joins]
    gone: set[int] = set()
    for index, leaves in enumerate(settings.leaves):
        field = f"strategy.leaves[{index}].worker"
        if leaves.worker >= known:
            raise InputError(field, leaves.worker, f"one of workers 0 to {known - 1}")
        if leaves.worker in gone:
            raise InputError(field, leaves.worker, "leaves twice")
        if leaves.after_step <= came[leaves.worker]:
            allowed = f"more than {came[leaves.worker]}, after which it joins"
            raise InputError(f"strategy.leaves[{index}].after_step", leaves.after_step, allowed)
        gone.add(leaves.worker)
    _check_never_empty(settings, came)


def _check_never_empty(settings: SwapStrategy, came: list[int]) -> None:
    for index, leaves in enumerate(settings.leaves):
        there = sum(step <= leaves.after_step for step in came)
        left = sum(other.after_step <= leaves.after_step for other in settings.leaves)
        if left >= there:
            raise InputError(f"strategy.leaves[{index}]", leaves.model_dump(), "leaves no worker to train")
