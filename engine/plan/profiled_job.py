"""The stages of a job whose layers were measured, on any GPU that the profile has."""

from collections.abc import Sequence
from dataclasses import dataclass

from engine.cluster.gpus import Gpu
from engine.errors import InputError
from engine.model.layer_profiles import PARAMETER_BYTES, LayerProfiles, LayerSize, read_profiles, read_sizes
from engine.model.memory import StageMemory
from engine.model.profile import StageProfile
from engine.model.profiled_stages import layers_of_stages
from engine.plan.request import JobInput, LayerProfilesInput, Layout
from engine.plan.stages import Stages


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledJob:
    """The stages, and the bytes of one microbatch in the largest hand-over between two of them."""

    stages: Stages
    activation_bytes: float

    @classmethod
    def of(
        cls, job: JobInput, layout: Layout, given: LayerProfilesInput, types: Sequence[Gpu]
    ) -> "ProfiledJob":
        """The job in one layout; without numbers of layers it is cut for the slowest of `types`.

        Raises
        ------
        InputError
            The profile or the sizes lack the model, a GPU, the micro-batch or the tp, or have other layers.
        """
        assert isinstance(job.model, str)  # the document's own check
        model, micro_batch, tp = job.model, layout.micro_batch, layout.tp
        profiles = read_profiles(given.times)
        try:
            each = [profiles.of(model, gpu.name, micro_batch, tp) for gpu in types]
            sizes = read_sizes(given.sizes).of(model, tp)
        except InputError as error:
            field = "layer_profiles.times" if error.field == "gpu" else error.field
            raise InputError(field, error.value, error.allowed) from None
        slowest = max(each, key=lambda rows: sum(forward_s + backward_s for forward_s, backward_s, _ in rows))
        if len(sizes) != len(slowest):
            allowed = f"sizes of {len(sizes)} layers; the times have {len(slowest)}"
            raise InputError("layer_profiles.sizes", model, allowed)
        cut = _cut(layout, given, slowest)
        return cls(
            stages=Stages(
                profiles_on=lambda gpu: tuple(
                    _stage(profiles, sizes, model, gpu, layout, layers) for layers in cut
                ),
                memory=tuple(_memory(sizes, layers, job, layout, given) for layers in cut),
            ),
            activation_bytes=micro_batch
            * max((sizes[layers[-1]].output_bytes for layers in cut[:-1]), default=0.0),
        )


def _cut(
    layout: Layout, given: LayerProfilesInput, rows: Sequence[tuple[float, float, float]]
) -> list[range]:
    try:
        return layers_of_stages(tuple(rows), layout.partitions, given.layers_per_stage)
    except InputError as error:
        field = "partitions" if error.field == "stages" else f"layer_profiles.{error.field}"
        raise InputError(field, error.value, error.allowed) from None


def _stage(
    profiles: LayerProfiles,
    sizes: Sequence[LayerSize],
    model: str,
    gpu: Gpu,
    layout: Layout,
    layers: range,
) -> StageProfile:
    seconds = profiles.stage(model, gpu.name, layout.micro_batch, layout.tp, layers)
    return StageProfile(
        layers=len(layers),
        parameters=round(layout.tp * sum(sizes[layer].parameters for layer in layers)),
        forward_s=seconds.forward_s,
        backward_s=seconds.backward_s,
        recompute_s=0.0,
        update_s=seconds.update_s,
    )


def _memory(
    sizes: Sequence[LayerSize], layers: range, job: JobInput, layout: Layout, given: LayerProfilesInput
) -> StageMemory:
    parameters = sum(sizes[layer].parameters for layer in layers)
    return StageMemory(
        state_bytes=PARAMETER_BYTES * parameters + given.framework_gb * 1e9,
        stored_bytes=layout.micro_batch * sum(sizes[layer].kept_bytes for layer in layers),
        full_bytes=0.0,
        serving_bytes=job.serving_bytes,
    )
