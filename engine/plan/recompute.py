"""Recomputation by stage: each stage repeats as little as its GPU's memory allows.

For a number k of microbatches in flight every stage takes the mode that repeats least among those that hold
k. No other choice for k is faster in any stage. The choice changes only where a stage's room for a mode ends,
so the search tries these k alone. That later stages could do with fewer than the first is not used.
"""

from engine.cluster.gpus import Gpu
from engine.model.flops import Recompute
from engine.model.transformer import Transformer
from engine.plan.request import JobInput, Layout
from engine.plan.stages import Stages, by_recompute, stages_of

LEAST_FIRST: tuple[Recompute, ...] = ("none", "selective", "full")


def recomputed_stages(given: JobInput, layout: Layout, model: Transformer | None) -> Stages:
    """The stages of a layout, with the recomputation of the document or each with its own.

    Raises InputError as `stages_of` does.
    """
    if given.recompute != "auto":
        return stages_of(given, layout, model)
    modes = [mode for mode in LEAST_FIRST if mode != "selective" or not given.fused_attention]
    variants = {
        mode: stages_of(given.model_copy(update={"recompute": mode}), layout, model) for mode in modes
    }
    deepest = min(given.microbatches, layout.partitions)  # what 1F1B has in flight
    return by_recompute(variants, deepest if layout.recompute is None else layout.recompute)


def turning_points(stages: Stages, types: tuple[Gpu, ...], microbatches: int) -> set[int]:
    """The microbatches in flight up to which some stage need not repeat more, and all of them.

    stages : that choose their recomputation.
    """
    cheaper = [one for mode, one in stages.variants.items() if mode != LEAST_FIRST[-1]]
    held = {n for one in cheaper for gpu in types for n in one.in_flight_on(gpu, microbatches)}
    return {n for n in held if n >= 1} | {microbatches}
