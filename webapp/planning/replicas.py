"""From a plan's data parallelism over the WAN to the document of `meridian train`: whole pipelines in each
data centre, whose gradients alone cross the WAN."""

from itertools import count, islice
from typing import Any

from engine.errors import InputError
from engine.inputs import parse
from engine.job.job import TrainJob
from webapp.planning.document import sections_of, train_fields


def replicas_document(
    request: dict[str, Any], data: dict[str, Any], training: dict[str, Any] | None
) -> dict[str, Any]:
    """The document of `meridian train` that runs the data parallelism `data` of a comparison.

    All pipelines have the schedule, the layers and the times of the data centre where they take longest.

    Parameters
    ----------
    request, training : as for `train_document`.
    data : `data` of a row of `meridian plan --cross-dc` for the plan's own recomputation.

    Raises
    ------
    InputError
        It is not feasible, it cannot be run in this version, or the document that it gives is refused.
    """
    if data.get("slowest_dc") is None:  # not feasible, or compared before comparisons had it
        old = "an older version compared it: clone the plan, and compare that"
        raise InputError("data", None, data["reason"] or old)
    counts, stages = data["pipelines_per_dc"], data["stages"]
    fields = train_fields(
        {**request, "job": {**request["job"], "microbatches": data["microbatches"]}},
        _option(data),
        training,
    )
    for name in ("dc_of_stage", "cells"):
        fields.pop(name, None)
    sites = {dc["name"]: dc for dc in request["datacenters"]}
    domains = {name: sites[name]["hb_domain"] for name in counts if sites[name].get("hb_domain")}
    device = count()
    fields |= {
        "datacenters": [
            {
                "name": name,
                "gpus": pipelines * stages,
                **({"hb_domain": domains[name]} if name in domains else {}),
            }
            for name, pipelines in counts.items()
        ],
        "links": [link for link in request.get("links", []) if set(link["between"]) <= set(counts)],
        # Devices are numbered by data centre, so pipeline after pipeline takes the next ones.
        "devices": {"pipelines": [list(islice(device, stages)) for _ in range(data["pipelines"])]},
        "all_reduce": "auto",
    }
    document = sections_of(fields)
    parse(TrainJob, document)
    return document


def _option(data: dict[str, Any]) -> dict[str, Any]:
    """An option of the plan with all pipelines in the data centre where they take longest."""
    return {
        "feasible": data["feasible"],
        "reason": data["reason"],
        "dp_cells": 1,
        "pipelines": data["pipelines"],
        "policy": data["policy"],
        "contention": data["contention"],
        "tp": data["tp"],
        "micro_batch": data["micro_batch"],
        "recompute": data["stage_recompute"],
        "layers_per_stage": data["layers_per_stage"],
        "partitions": [{"dc": data["slowest_dc"], "stages": data["stages"]}],
    }
