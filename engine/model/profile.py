"""Stage profiles: compute time and memory of each stage of a pipeline, from FLOPs and MFU."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from engine.cluster.gpus import Gpu
from engine.errors import InputError
from engine.model.flops import Recompute
from engine.model.transformer import Transformer

# Of every product Y = XW the backward pass computes two: dX = dY·Wᵀ and dW = Xᵀ·dY.
BACKWARD_OVER_FORWARD = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class StageProfile:
    """The work of one pipeline stage for one microbatch. Times in seconds.

    update_s : of the optimizer, once an iteration; 0 where it is not modelled.
    expert_parameters : of `parameters`, those of experts, which expert parallelism spreads over replicas.
    tp_s, cp_s, ep_s : of the times, all passes together, the part in which the GPUs wait for messages of
        tensor, context and expert parallelism; None where it is not modelled.
    """

    layers: int
    parameters: int
    forward_s: float
    backward_s: float
    recompute_s: float
    update_s: float = 0.0
    expert_parameters: int = 0
    tp_s: float | None = None
    cp_s: float | None = None
    ep_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Settings of a stage: `micro_batch` sequences at once on `gpus` GPUs, at MFU `mfu`.

    recompute : selective repeats attention's core, unless that is fused and so stores nothing.
    """

    micro_batch: int
    gpus: int
    mfu: float
    dtype_bytes: int
    recompute: Recompute = "full"
    fused_attention: bool = True

    def seconds(self, flops: float, gpu: Gpu) -> float:
        return flops / (self.mfu * gpu.flops(self.dtype_bytes) * self.gpus)


def layers_per_stage(model: Transformer, stages: int) -> tuple[int, ...]:
    """Blocks of each stage, as even as possible; the first stages get the odd ones.

    The last stage, which also computes the output matrix, so never has more than another.

    Raises
    ------
    InputError
        More stages than layers.
    """
    if stages > model.layers:
        raise InputError("partitions", stages, f"at most one per layer: the model has {model.layers}")
    each, over = divmod(model.layers, stages)
    return tuple(each + (stage < over) for stage in range(stages))


def stage_profiles(
    model: Transformer, compute: Compute, gpus: tuple[Gpu, ...], blocks: Sequence[int] | None = None
) -> tuple[StageProfile, ...]:
    """The profile of each stage, stage i on `gpus[i]`: embedding on the first, output matrix on the last.

    blocks : of each stage; by default as even as possible.
    """
    blocks = blocks or layers_per_stage(model, len(gpus))
    ends = itertools.accumulate(blocks)
    return tuple(
        _stage(model, compute, gpus, stage, layers, model.moe_blocks(end - layers, end))
        for stage, (layers, end) in enumerate(zip(blocks, ends, strict=True))
    )


def _stage(
    model: Transformer, compute: Compute, gpus: tuple[Gpu, ...], stage: int, layers: int, moe_blocks: int
) -> StageProfile:
    flops = layers * model.layer_forward_flops(compute.micro_batch)
    flops += moe_blocks * model.more_expert_flops(compute.micro_batch)
    experts = moe_blocks * model.block_experts_parameters
    parameters = layers * model.layer_parameters + moe_blocks * model.beside_experts + experts
    if stage == 0:
        parameters += model.embedding_parameters
    if stage == len(gpus) - 1:
        parameters += model.head_parameters - (model.tied_parameters if stage == 0 else 0)
        flops += model.head_forward_flops(compute.micro_batch)
    forward_s = compute.seconds(flops, gpus[stage])
    core = 0.0 if compute.fused_attention else layers * model.attention_core_flops(compute.micro_batch)
    again = {"none": 0.0, "selective": compute.seconds(core, gpus[stage]), "full": forward_s}
    return StageProfile(
        layers=layers,
        parameters=parameters,
        expert_parameters=experts,
        forward_s=forward_s,
        backward_s=BACKWARD_OVER_FORWARD * forward_s,
        recompute_s=again[compute.recompute],
    )
