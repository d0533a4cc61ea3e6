"""Stages as sums over the layers of a profile, as `meridian simulate` and `meridian profile` read them."""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from pydantic import ConfigDict, Field, field_validator, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document
from engine.model.layer_profiles import Rows, StageSeconds, read_profiles

MOST_LAYERS = 10_000


class ProfiledStages(Document):
    """The stages of a model by its layer profile.

    layer_profiles : the table, model → GPU → micro-batch → tp → layer → [forward, backward, update] seconds.
    gpu, tp : one for all stages, or one per stage.
    layers_per_stage : numbers of layers; by default such that the slowest stage takes least.
    """

    model_config = ConfigDict(protected_namespaces=())

    layer_profiles: dict[str, Any]
    model: str
    gpu: str | list[str]
    micro_batch: Count = 1
    tp: Count | list[Count] = 1
    stages: Count = Field(default=1, le=MOST_LAYERS)
    layers_per_stage: list[Count] | None = None

    @field_validator("layer_profiles")
    @classmethod
    def _readable(cls, table: dict[str, Any]) -> dict[str, Any]:
        read_profiles(table)
        return table

    @model_validator(mode="after")
    def _one_per_stage(self) -> "ProfiledStages":
        for name in ("gpu", "tp"):
            given = getattr(self, name)
            if not isinstance(given, list):
                continue
            if len(given) != self.stages:
                raise InputError(name, given, f"one, or one per stage: {self.stages}")
            if self.layers_per_stage is None:
                raise InputError("layers_per_stage", None, f"required if each stage has a {name} of its own")
        return self

    @property
    def gpu_of_stage(self) -> list[str]:
        return self.gpu if isinstance(self.gpu, list) else [self.gpu] * self.stages

    @property
    def tp_of_stage(self) -> list[int]:
        return self.tp if isinstance(self.tp, list) else [self.tp] * self.stages

    @cached_property
    def layers_of_stage(self) -> list[range]:
        """The layers of each stage. Raises InputError as `seconds`."""
        profiles = read_profiles(self.layer_profiles)
        rows = profiles.of(self.model, self.gpu_of_stage[0], self.micro_batch, self.tp_of_stage[0])
        return layers_of_stages(rows, self.stages, self.layers_per_stage)

    @cached_property
    def seconds(self) -> tuple[StageSeconds, ...]:
        """The times of each stage.

        Raises
        ------
        InputError
            The profile lacks the model, a GPU, the micro-batch or a tp, or has other layers.
        """
        profiles = read_profiles(self.layer_profiles)
        placed = zip(self.gpu_of_stage, self.tp_of_stage, self.layers_of_stage, strict=True)
        return tuple(
            profiles.stage(self.model, gpu, self.micro_batch, tp, layers) for gpu, tp, layers in placed
        )

    def times_ms(self) -> dict[str, list[float]]:
        """{forward, backward}, milliseconds by stage. Raises InputError as `seconds`."""
        return {
            "forward": [1e3 * stage.forward_s for stage in self.seconds],
            "backward": [1e3 * stage.backward_s for stage in self.seconds],
        }


def layers_of_stages(rows: Rows, stages: int, counts: Sequence[int] | None) -> list[range]:
    """The layers of each stage: `counts` of them, or such that the slowest stage takes least.

    rows : [forward, backward, update] seconds of each layer.

    Raises
    ------
    InputError
        More stages than layers, or counts that are not one per stage and all layers.
    """
    if counts is None:
        return _balanced([forward_s + backward_s for forward_s, backward_s, _ in rows], stages)
    if len(counts) != stages:
        raise InputError("layers_per_stage", list(counts), f"one number per stage: {stages}")
    if sum(counts) != len(rows):
        allowed = f"must add up to the model's {len(rows)} layers, embedding and output matrix included"
        raise InputError("layers_per_stage", list(counts), allowed)
    ends = [sum(counts[: i + 1]) for i in range(stages)]
    return [range(end - count, end) for end, count in zip(ends, counts, strict=True)]


def _balanced(seconds: Sequence[float], stages: int) -> list[range]:
    """Adjacent layers by stage, such that the slowest stage takes least.

    Of cuts that are equal in this, the first stages, which hold most microbatches, get the least layers.
    """
    if stages > len(seconds):
        raise InputError("stages", stages, f"at most one per layer: the model has {len(seconds)}")
    low, high = max(seconds), sum(seconds)
    first = len(seconds) - stages + 1
    cut = [range(first), *(range(i, i + 1) for i in range(first, len(seconds)))]
    while low < high * (1 - 1e-9):
        middle = (low + high) / 2
        candidate = _packed(seconds, stages, middle)
        if candidate is None:
            low = middle
        else:
            cut, high = candidate, middle
    return cut


def _packed(seconds: Sequence[float], stages: int, limit: float) -> list[range] | None:
    """Stages of at most `limit` seconds (but for rounding), filled from the last; None if it takes more."""
    cut: list[range] = []
    end = len(seconds)
    for left in range(stages - 1, -1, -1):
        start, spent = end - 1, seconds[end - 1]
        while start > left and spent + seconds[start - 1] <= limit * (1 + 1e-12):
            start -= 1
            spent += seconds[start]
        cut.append(range(start, end))
        end = start
    return cut[::-1] if end == 0 else None
