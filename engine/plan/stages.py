"""Time and memory of each stage of a job on a GPU.

Times are as given, at an MFU, as measured, or by rooflines. A block that was measured on that type of GPU
replaces its roofline.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import accumulate

from engine.cluster.collectives import Rates
from engine.cluster.gpus import Gpu
from engine.errors import Infeasible, InputError
from engine.model.efficiency import shipped
from engine.model.flops import Recompute
from engine.model.iteration import Machine
from engine.model.kernels import Device, How
from engine.model.measured_blocks import measured_block
from engine.model.memory import StageMemory, stage_memory
from engine.model.profile import Compute, StageProfile, layers_per_stage, stage_profiles
from engine.model.stages import measured_profiles, roofline_profiles
from engine.model.transformer import Transformer
from engine.plan.chunks import ByChunk, memory_by_chunk
from engine.plan.request import JobInput, Layout
from engine.schedule.traversal import Traversal

GB = 1e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Microbatches that fit each stage's GPU: in flight, and of them with all their activations.

    One number per stage; None: no stage has a limit.
    """

    in_flight: tuple[int, ...] | None
    full: tuple[int, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stages:
    """The stages of one layout of a job on any GPU.

    profiles_on : the profile of each stage if all of them are on this type of GPU.
    memory : of each stage; None if the job does not say what it trains, or if it depends on the type of GPU.
    chunked : the memory of each stage and chunk on another path of the model through the stages, where
        `memory` is that of the straight one; None where that is not known.
    recompute_on : what each stage repeats on this type of GPU, where each has its own recomputation.
    variants : then the stages with one recomputation for all, the fastest first; choice : see `by_recompute`.
    """

    profiles_on: Callable[[Gpu], tuple[StageProfile, ...]]
    memory: tuple[StageMemory, ...] | None = None
    chunked: Callable[[Traversal], ByChunk] | None = None
    recompute_on: Callable[[Gpu], tuple[Recompute, ...]] | None = None
    variants: Mapping[Recompute, "Stages"] = field(default_factory=dict, compare=False)
    choice: tuple[Recompute, ...] | int = ()
    _seen: dict[str, tuple[StageProfile, ...]] = field(default_factory=dict, compare=False)
    _held: dict[str, tuple[int, ...]] = field(default_factory=dict, compare=False)
    _rooms: dict[tuple[object, ...], Room | Infeasible] = field(default_factory=dict, compare=False)

    def sharded_over(self, replicas: int, ep: int) -> "Stages":
        """The same stages with the optimizer's state spread over `replicas` of each (ZeRO-1), of which one in
        `ep` has the same experts.
        """
        if self.variants:
            return by_recompute(
                {mode: one.sharded_over(replicas, ep) for mode, one in self.variants.items()}, self.choice
            )

        def sharded(memory: Iterable[StageMemory]) -> tuple[StageMemory, ...]:
            return tuple(one.sharded_over(replicas, ep) for one in memory)

        def by_chunk(traversal: Traversal) -> ByChunk:
            assert self.chunked is not None
            whole, chunks = self.chunked(traversal)
            return sharded(whole), chunks

        return Stages(
            profiles_on=self.on,
            memory=self.memory and sharded(self.memory),
            chunked=self.chunked and by_chunk,
        )

    def memory_on(self, gpu: Gpu) -> tuple[StageMemory, ...] | None:
        """The memory of each stage if all of them are on this type of GPU."""
        return self._memory_with(None if self.recompute_on is None else self.recompute_on(gpu))

    def memory_of(self, gpus: Sequence[Gpu]) -> tuple[StageMemory, ...] | None:
        """The memory of each stage, stage i on `gpus[i]`."""
        return self._memory_with(self.recompute_of(gpus))

    def memory_by_chunk(self, gpus: Sequence[Gpu], traversal: Traversal) -> ByChunk | None:
        """The memory of each stage and of its chunks, stage i on `gpus[i]`; None where it is not known."""
        modes = self.recompute_of(gpus)
        if modes is None:
            return self.chunked and self.chunked(traversal)
        each = {mode: one.chunked(traversal) for mode, one in self.variants.items() if one.chunked}
        whole = tuple(each[mode][0][stage] for stage, mode in enumerate(modes))
        return whole, [each[mode][1][stage] for stage, mode in enumerate(modes)]

    def _memory_with(self, modes: tuple[Recompute, ...] | None) -> tuple[StageMemory, ...] | None:
        if modes is None:
            return self.memory
        each = {mode: one.memory or () for mode, one in self.variants.items()}
        return tuple(each[mode][stage] for stage, mode in enumerate(modes))

    def recompute_of(self, gpus: Sequence[Gpu]) -> tuple[Recompute, ...] | None:
        """What each stage repeats, stage i on `gpus[i]`; None if the document says it of all."""
        if self.recompute_on is None:
            return None
        return tuple(self.recompute_on(gpu)[stage] for stage, gpu in enumerate(gpus))

    def on(self, gpu: Gpu) -> tuple[StageProfile, ...]:
        """The profile of each stage on `gpu`, computed once."""
        if gpu.name not in self._seen:
            self._seen[gpu.name] = self.profiles_on(gpu)
        return self._seen[gpu.name]

    def in_flight_on(self, gpu: Gpu, microbatches: int) -> tuple[int, ...]:
        """The microbatches that each stage has memory for on `gpu`, at most `microbatches`; below 1: it does
        not fit.
        """
        if gpu.name not in self._held:
            memory = self.memory_on(gpu)
            if memory is None:
                return (microbatches,) * len(self.on(gpu))
            self._held[gpu.name] = tuple(one.most_in_flight(gpu.usable_bytes) for one in memory)
        return tuple(min(microbatches, n) for n in self._held[gpu.name])

    def room(self, gpus: tuple[Gpu, ...], microbatches: int) -> Room | Infeasible:
        """The microbatches that fit the memory of `gpus`, stage i on `gpus[i]`, or the stage that does not
        fit.

        The number in flight comes first, then the number of these with all their activations. A stage holds
        no microbatch that the stage before it does not hold, so it has no higher limit. And it leaves as many
        with all their activations as one limit for all stages, the least, would.
        """
        key = (*(gpu.name for gpu in gpus), microbatches)
        if key not in self._rooms:
            self._rooms[key] = self._room(gpus, microbatches)
        return self._rooms[key]

    def _room(self, gpus: tuple[Gpu, ...], microbatches: int) -> Room | Infeasible:
        memory = self.memory_of(gpus)
        if memory is None:
            return Room(in_flight=None, full=None)
        types = {gpu.name: gpu for gpu in gpus}
        held_on = {name: self.in_flight_on(gpu, microbatches) for name, gpu in types.items()}
        held = [held_on[gpu.name][stage] for stage, gpu in enumerate(gpus)]
        least = min(range(len(held)), key=lambda stage: held[stage])
        if held[least] < 1:
            return Infeasible(reason=_too_large(least, memory[least], gpus[least]))
        pairs = [(one, gpu.usable_bytes) for one, gpu in zip(memory, gpus, strict=True)]
        alike = set(pairs)  # most are
        most_full = {pair: pair[0].most_full(pair[1], held[least]) for pair in alike}
        fewest = min((n for n in most_full.values() if n is not None), default=held[least])
        roomy = {pair: pair[0].most_in_flight(pair[1], min(fewest, held[least])) for pair in alike}
        in_flight = [min(n, roomy[pair]) for n, pair in zip(accumulate(held, min), pairs, strict=True)]
        full = {key: key[0][0].most_full(key[0][1], key[1]) for key in zip(pairs, in_flight, strict=True)}
        each = [full[key] for key in zip(pairs, in_flight, strict=True)]
        return Room(
            in_flight=_limits(in_flight, microbatches),
            full=_limits([microbatches if n is None else n for n in each], microbatches),
        )

    def no_room_on(self, gpu: Gpu) -> str | None:
        """Why no stage at all fits `gpu`; None if at least one does."""
        memory = self.memory_on(gpu)
        if memory is None or max(self.in_flight_on(gpu, 1)) >= 1:
            return None
        least = min(range(len(memory)), key=lambda stage: memory[stage].total_bytes(1))
        return _too_large(least, memory[least], gpu)


def _limits(most: Sequence[int], microbatches: int) -> tuple[int, ...] | None:
    """`most` of each stage, at most all microbatches; None if no stage has fewer."""
    return tuple(min(n, microbatches) for n in most) if min(most) < microbatches else None


def by_recompute(variants: Mapping[Recompute, Stages], choice: tuple[Recompute, ...] | int) -> Stages:
    """Stages with a recomputation of their own, of `variants`, which are the same stages, the fastest first.

    choice : that of each stage; or the microbatches in flight that each must hold, with the fastest variant.
        A stage that holds so many with none takes the one that holds most.
    """
    modes: dict[str, tuple[Recompute, ...]] = {}

    def modes_on(gpu: Gpu) -> tuple[Recompute, ...]:
        if not isinstance(choice, int):
            return choice
        if gpu.name not in modes:
            held = {mode: one.in_flight_on(gpu, choice) for mode, one in variants.items()}
            count = len(next(iter(held.values())))
            modes[gpu.name] = tuple(max(held, key=lambda mode: held[mode][i]) for i in range(count))
        return modes[gpu.name]

    def profiles(gpu: Gpu) -> tuple[StageProfile, ...]:
        return tuple(variants[mode].on(gpu)[stage] for stage, mode in enumerate(modes_on(gpu)))

    return Stages(profiles_on=profiles, recompute_on=modes_on, variants=variants, choice=choice)


def stages_of(given: JobInput, layout: Layout, model: Transformer | None) -> Stages:
    """The stages of a job's document, laid out in one way.

    Raises
    ------
    InputError
        More partitions than layers; a `tp`, `cp` or `ep` that does not divide the heads, the tokens or the
        experts; or measured times that do not fit.
    """
    if model is None:
        return _as_given(given, layout.partitions)
    blocks = layout.layers or layers_per_stage(model, layout.partitions)
    _refuse_degrees(given, layout, model)
    assert given.recompute != "auto"  # `recomputed_stages` chooses
    how = How(
        recompute=given.recompute,
        sequence_parallel=given.sequence_parallel and layout.tp > 1,
        fused_attention=given.fused_attention,
    )
    memory, chunked = _memory_of(given, layout, model, how, blocks)
    if given.mfu is not None:
        profiles_on = _at_mfu(given, layout, model, how, given.mfu, blocks)
    else:
        profiles_on = _by_roofline(given, layout, model, how, blocks)
    return Stages(profiles_on=profiles_on, memory=memory, chunked=chunked)


def _refuse_degrees(given: JobInput, layout: Layout, model: Transformer) -> None:
    """Raises InputError for a degree that does not divide what it is to divide."""
    for name, count in (("heads", model.heads), ("kv_heads", model.kv_heads), ("ffn", model.ffn)):
        if count % layout.tp:  # which training refuses
            raise InputError("tp", layout.tp, f"must divide the model's {name} = {count}")
    if layout.cp > 1 and model.seq % (2 * layout.cp):
        allowed = f"twice it must divide the {model.seq} tokens of a sequence: each GPU has two parts of it"
        raise InputError("cp", layout.cp, allowed)
    if given.ep > 1 and model.moe is None:
        raise InputError("ep", given.ep, "must be 1: the model has no experts")
    if model.moe is not None and model.moe.experts % given.ep:
        raise InputError("ep", given.ep, f"must divide the model's experts = {model.moe.experts}")


def _memory_of(
    given: JobInput, layout: Layout, model: Transformer, how: How, blocks: Sequence[int]
) -> tuple[tuple[StageMemory, ...], Callable[[Traversal], ByChunk]]:
    """Memory of each stage, straight and on any path; equal stages are computed once."""

    @cache
    def one(blocks: int, moe_blocks: int, is_first: bool, is_last: bool) -> StageMemory:
        return stage_memory(
            model,
            how,
            tp=layout.tp,
            cp=layout.cp,
            ep=given.ep,
            micro_batch=layout.micro_batch,
            blocks=blocks,
            moe_blocks=moe_blocks,
            is_first=is_first,
            is_last=is_last,
            serving_bytes=given.serving_bytes,
        )

    def of_layers(numbers: Collection[int]) -> StageMemory:
        head = model.layers + 1
        inner = [number for number in numbers if 0 < number < head]
        moe_blocks = sum(model.moe_blocks(number - 1, number) for number in inner)
        return one(len(inner), moe_blocks, 0 in numbers, head in numbers)

    ends, last = list(accumulate(blocks)), len(blocks) - 1
    straight = tuple(
        one(n, model.moe_blocks(ends[stage] - n, ends[stage]), stage == 0, stage == last)
        for stage, n in enumerate(blocks)
    )
    return straight, lambda traversal: memory_by_chunk(model.layers, traversal, blocks, of_layers)


def _as_given(given: JobInput, stages: int) -> Stages:
    assert given.forward_ms is not None  # the document's own check
    assert given.backward_ms is not None
    profile = StageProfile(
        layers=1,
        parameters=round(given.parameters_per_stage or 0),
        forward_s=given.forward_ms / 1e3,
        backward_s=given.backward_ms / 1e3,
        recompute_s=(given.recompute_ms or 0.0) / 1e3,
    )
    return Stages(profiles_on=lambda gpu: (profile,) * stages)


def _at_mfu(
    given: JobInput, layout: Layout, model: Transformer, how: How, mfu: float, blocks: Sequence[int]
) -> Callable[[Gpu], tuple[StageProfile, ...]]:
    compute = Compute(
        micro_batch=layout.micro_batch,
        gpus=layout.gpus_per_stage,
        mfu=mfu,
        dtype_bytes=given.dtype_bytes,
        recompute=how.recompute,
        fused_attention=how.fused_attention,
    )

    def profiles(gpu: Gpu) -> tuple[StageProfile, ...]:
        computed = stage_profiles(model, compute, (gpu,) * layout.partitions, blocks)
        return tuple(map(_in_backward, computed)) if how.recompute == "selective" else computed

    return profiles


def _in_backward(profile: StageProfile) -> StageProfile:
    """Attention's core is computed again block by block within the backward pass, not as an op of its own."""
    return replace(profile, backward_s=profile.backward_s + profile.recompute_s, recompute_s=0.0)


def _by_roofline(
    given: JobInput, layout: Layout, model: Transformer, how: How, blocks: Sequence[int]
) -> Callable[[Gpu], tuple[StageProfile, ...]]:
    def on(gpu: Gpu) -> How:
        if layout.gpus_per_stage > 1 or not how.fused_attention:
            return how
        block = measured_block(gpu.name, model, layout.micro_batch, recompute=how.recompute == "full")
        return replace(how, measured=block)

    def profiles(gpu: Gpu) -> tuple[StageProfile, ...]:
        if layout.gpus_per_stage > 1 and not gpu.link_bytes_per_s:
            allowed = f"must be 1 on the {gpu.name}, unless its data centre gives link_gb_s, or the job mfu"
            name, degree = ("tp", layout.tp) if layout.tp > 1 else ("cp", layout.cp)
            raise InputError(name, degree, allowed)
        machines = (_in_network(gpu, layout),) * layout.partitions
        computed = roofline_profiles(
            model,
            on(gpu),
            machines,
            tp=layout.tp,
            dp=given.ep,
            cp=layout.cp,
            micro_batch=layout.micro_batch,
            blocks=blocks,
        )
        if how.recompute == "selective":
            computed = tuple(map(_in_backward, computed))
        if given.measured is None:
            return computed
        try:
            return measured_profiles(computed, given.measured, layout.micro_batch * model.seq)
        except InputError as error:
            raise InputError(f"measured.{error.field}", error.value, error.allowed) from None

    return profiles


def link_rate(gpu: Gpu) -> float:
    """Bytes/s per direction that are reached between two GPUs of a node.

    Of a GPU with own figures they may be unknown: then nothing is sent inside a stage, which has one GPU.
    """
    return gpu.link_bytes_per_s * shipped().hb or math.inf


def machine_of(gpu: Gpu) -> Machine:
    """`gpu` at the rates that are reached; a stage's GPUs are in one node, and so are its collectives."""
    inside = link_rate(gpu)
    return Machine(
        device=Device.of(gpu, shipped()),
        hb_domain=None,
        rates=Rates(hb_bytes_per_s=inside, nic_bytes_per_s=inside),
    )


def _in_network(gpu: Gpu, layout: Layout) -> Machine:
    """The same, if it is known, with the network of the node, which is the GPUs of one stage."""
    machine = machine_of(gpu)
    if gpu.network is None:
        return machine
    share = gpu.network.bytes_per_s / layout.gpus_per_stage
    return replace(
        machine,
        hb_domain=layout.tp,
        rates=replace(machine.rates, nic_bytes_per_s=share),
        latency_s=gpu.network.latency_s,
    )


def _too_large(stage: int, memory: StageMemory, gpu: Gpu) -> str:
    needed = f"stage {stage} needs {memory.total_bytes(1) / GB:.1f} GB per GPU for one microbatch"
    if memory.serving_bytes:
        needed += f" with {memory.serving_bytes / GB:.1f} GB reserved for prefill"
    return f"{needed}{of_margin(gpu)}; {gpu.name} has {gpu.memory_bytes / GB:.1f}"


def of_margin(gpu: Gpu) -> str:
    """What a reason says of the margin that `gpu` is to keep free."""
    return f" and {100 * gpu.margin:g} % of that free" if gpu.margin else ""
