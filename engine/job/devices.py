"""`devices` of a training job: which device, and so which data centre, runs a stage of a pipeline."""

from typing import Annotated

from pydantic import Field

from engine.errors import InputError
from engine.inputs import Document, Index

CUDA = "cuda"


class Devices(Document):
    """A placement as `meridian place` gives it.

    Devices are numbered through `datacenters`: those of the first one from 0, then those of the second, ….

    pipelines : a list per pipeline with the device of each stage.
    groups : the same by stage, as `meridian place` also gives it; must agree with `pipelines`.
    """

    pipelines: Annotated[list[list[Index]], Field(min_length=1)]
    groups: list[list[Index]] | None = None

    def check(self, *, pipelines: int, stages: int, gpus: list[int]) -> None:
        """Raise InputError where the placement does not fit a job; `gpus` are those of each data centre."""
        if len(self.pipelines) != pipelines:
            allowed = f"one list per pipeline: {pipelines} expected, {len(self.pipelines)} given"
            raise InputError("cell.devices.pipelines", self.pipelines, allowed)
        seen: set[int] = set()
        for index, devices in enumerate(self.pipelines):
            if len(devices) != stages:
                allowed = f"one device per stage: {stages} expected, {len(devices)} given"
                raise InputError(f"cell.devices.pipelines[{index}]", devices, allowed)
            for stage, device in enumerate(devices):
                field = f"cell.devices.pipelines[{index}][{stage}]"
                if device >= sum(gpus):
                    raise InputError(field, device, f"the data centres have devices 0 to {sum(gpus) - 1}")
                if device in seen:
                    raise InputError(field, device, "is in the placement twice")
                seen.add(device)
        if self.groups is not None and [sorted(group) for group in self.groups] != self._by_stage(stages):
            allowed = "must have the same devices, stage by stage, as pipelines"
            raise InputError("cell.devices.groups", self.groups, allowed)

    def dcs(self, gpus: list[int]) -> tuple[tuple[int, ...], ...]:
        """Index of the data centre of each stage, by pipeline."""
        owner = [dc for dc, count in enumerate(gpus) for _ in range(count)]
        return tuple(tuple(owner[device] for device in devices) for devices in self.pipelines)

    def _by_stage(self, stages: int) -> list[list[int]]:
        return [sorted(devices[stage] for devices in self.pipelines) for stage in range(stages)]
