"""`swap` of a training job: the device, where gradients live, and which workers come and go. No torch."""

from typing import Annotated, Any, Literal

from pydantic import Field

from engine.inputs import Document, Index
from engine.plan.swap.request import GpuInput

STRATEGY = "swap"
MOST_CHANGES = 256


class Joins(Document):
    """A worker on `device` (numbered through `datacenters`) comes when `after_step` steps are done."""

    after_step: Annotated[Index, Field(ge=1)]
    device: Index


class Leaves(Document):
    """`worker` goes when `after_step` steps are done; those that join are numbered after the first ones."""

    after_step: Annotated[Index, Field(ge=1)]
    worker: Index


class SwapSettings(Document):
    """How the workers swap.

    gpu : memory_bytes and host_to_device_gb_s, or a name of the catalogue.
    gradients : host: a sub-model's leave the device when its backward visit ends; device: those of the whole
        model stay there until the global batch is done.
    """

    gpu: GpuInput
    gradients: Literal["host", "device"] = "host"
    joins: Annotated[list[Joins], Field(max_length=MOST_CHANGES)] = []
    leaves: Annotated[list[Leaves], Field(max_length=MOST_CHANGES)] = []


def filled(document: dict[str, Any]) -> dict[str, Any]:
    """A swap job's document with what follows from the strategy: one stage, recomputation, devices in order.

    Raises
    ------
    InputError
        `devices` is left out and there are fewer GPUs than workers.
    """
    given = {name: value for name, value in document.items() if value is not None}
    own = {"stages": 1, "policy": STRATEGY, "recompute": True}
    workers = given.get("pipelines", 1)
    if "devices" not in given and isinstance(workers, int) and 1 <= workers <= 1024:
        own["devices"] = {"pipelines": [[device] for device in range(workers)]}
    return {**own, **given}
