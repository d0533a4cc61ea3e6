"""Stage profiles from rooflines, collectives of the stage's own GPUs, and measured times if there are any.

Unlike in engine.model.profile, which has one utilization for all, each stage here may have other GPUs, and
tensor, context and expert parallelism are charged. Hand-overs between stages belong to the schedule.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from engine.errors import InputError
from engine.inputs import Count, Document, Index, NonNegative, Positive
from engine.model import kernels
from engine.model.charges import Charge, microbatch_charges
from engine.model.context_parallel import ring_late_s
from engine.model.iteration import Machine, charge_s
from engine.model.kernels import How, Pass
from engine.model.layout import Strategies, expert_parallel, place
from engine.model.profile import StageProfile, layers_per_stage
from engine.model.transformer import Transformer


class MeasuredRow(Document):
    """A measurement by `meridian profile` of one stage with `tokens` tokens a microbatch; other fields are
    ignored.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    stage: Index
    tokens: Count
    forward_ms: Positive
    backward_ms: Positive
    recompute_ms: NonNegative = 0.0


class MeasuredProfile(Document):
    """The document that `meridian profile` writes."""

    device: str
    model: object = None
    rows: list[MeasuredRow] = Field(min_length=1)


def roofline_profiles(
    model: Transformer,
    how: How,
    machines: Sequence[Machine],
    *,
    tp: int,
    micro_batch: int,
    dp: int = 1,
    cp: int = 1,
    blocks: Sequence[int] | None = None,
) -> tuple[StageProfile, ...]:
    """The profile of each stage of a pipeline, stage i on `machines[i]`.

    Parameters
    ----------
    tp, cp : degrees of tensor and of context parallelism: a stage has tp · cp GPUs, which `machines` join at
        their HB rate.
    dp : replicas, over which experts are spread.
    blocks : of each stage; by default as even as possible.

    Raises
    ------
    InputError
        More stages than layers.
    """
    blocks = blocks or layers_per_stage(model, len(machines))
    # A GPU has 1/cp of the tokens, and multiplies them with all keys: it computes as for so many sequences.
    layout = Strategies(tp=tp, pp=len(machines), dp=dp, interleave=1, micro_batch=micro_batch / cp)
    alike: dict[tuple[Machine, _Share], StageProfile] = {}
    shares = _shares(model, blocks)
    for key in zip(machines, shares, strict=True):
        if key not in alike:
            alike[key] = _stage(model, how, key[0], layout, cp, key[1])
    return tuple(alike[key] for key in zip(machines, shares, strict=True))


def measured_profiles(
    profiles: Sequence[StageProfile], measured: MeasuredProfile, tokens: int
) -> tuple[StageProfile, ...]:
    """`profiles` with the times measured at `tokens` tokens a microbatch; stages without measurement stay.

    Between two measured numbers of tokens, times are interpolated linearly.

    Raises
    ------
    InputError
        An unknown stage, a repeated measurement, or `tokens` outside of the measured range.
    """
    times = _by_stage(profiles, measured)
    return tuple(
        _overridden(profile, times[stage], tokens) if stage in times else profile
        for stage, profile in enumerate(profiles)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Share:
    """The part of the model on one stage: blocks, those of them with experts, first and last matrix."""

    blocks: int
    moe: int
    is_first: bool
    is_last: bool


def _shares(model: Transformer, blocks: Sequence[int]) -> list[_Share]:
    ends = list(itertools.accumulate(blocks, initial=0))
    return [
        _Share(
            blocks=end - start,
            moe=model.moe_blocks(start, end),
            is_first=start == 0,
            is_last=end == ends[-1],
        )
        for start, end in itertools.pairwise(ends)
    ]


def _stage(
    model: Transformer, how: How, machine: Machine, layout: Strategies, cp: int, share: _Share
) -> StageProfile:
    blocks, moe, is_first, is_last = share.blocks, share.moe, share.is_first, share.is_last
    own = _own_pass(model, how, machine, layout, blocks - moe, moe, is_last)
    placement = place(model, layout, machine.hb_domain or layout.gpus)
    counts = {
        "block": (blocks, blocks),
        "moe_block": (moe, moe),
        "first": (int(is_first), int(is_first)),
        "last": (int(is_last), int(is_last)),
        "arrival": (int(not is_first), int(not is_last)),
    }
    sent = dict.fromkeys(("tp", "ep", "cp"), np.zeros(3))  # forward, backward, recomputation
    for charge in microbatch_charges(model, how, layout, placement):
        if charge.op is not None:
            calls = np.array(_calls(charge, counts[charge.per]))
            sent[charge.kind] = sent[charge.kind] + calls * float(charge_s(charge, machine))
    if cp > 1:
        sent["cp"] = blocks * _ring_late_s(model, how, machine, layout, cp)
    waits = np.sum(list(sent.values()), axis=0).tolist()
    return StageProfile(
        layers=blocks,
        parameters=_parameters(model, share),
        expert_parameters=moe * model.block_experts_parameters,
        forward_s=float(own.forward_s) + waits[0],
        backward_s=float(own.backward_s) + waits[1],
        recompute_s=float(own.recompute_s) + waits[2],
        **{f"{kind}_s": float(seconds.sum()) for kind, seconds in sent.items()},
    )


def _ring_late_s(
    model: Transformer, how: How, machine: Machine, layout: Strategies, cp: int
) -> NDArray[np.float64]:
    """Of one block: forward, backward, recomputation."""
    late = ring_late_s(
        model,
        how,
        machine.device,
        sequences=layout.micro_batch,
        tp=layout.tp,
        cp=cp,
        bytes_per_s=machine.rates.hb_bytes_per_s,
    )
    return np.array([late.forward_s, late.backward_s, late.recompute_s], dtype=np.float64)


def _own_pass(
    model: Transformer, how: How, machine: Machine, layout: Strategies, dense: int, moe: int, is_last: bool
) -> Pass:
    """Compute time of one GPU of the stage for one microbatch."""
    parts = [(dense, kernels.block(model, how, machine.device, layout.micro_batch, layout.tp))]
    if model.moe is not None:
        local = model.moe.experts // int(expert_parallel(model, layout.dp))
        each = kernels.moe_block(model, how, machine.device, layout.micro_batch, layout.tp, local)
        parts.append((moe, each))
    if is_last:
        parts.append((1, kernels.head(model, machine.device, layout.micro_batch, layout.tp)))
    return Pass(
        forward_s=sum(n * part.forward_s for n, part in parts),
        backward_s=sum(n * part.backward_s for n, part in parts),
        recompute_s=sum(n * part.recompute_s for n, part in parts),
    )


def _calls(charge: Charge, counts: tuple[int, ...]) -> tuple[int, int, int]:
    forward, backward = counts
    return forward * charge.forward, backward * charge.backward, forward * charge.again


def _parameters(model: Transformer, share: _Share) -> int:
    parameters = share.blocks * model.layer_parameters
    parameters += share.moe * (model.block_experts_parameters + model.beside_experts)
    parameters += model.embedding_parameters if share.is_first else 0
    parameters += model.head_parameters if share.is_last else 0
    return parameters - (model.tied_parameters if share.is_first and share.is_last else 0)


def _by_stage(
    profiles: Sequence[StageProfile], measured: MeasuredProfile
) -> dict[int, dict[int, MeasuredRow]]:
    times: dict[int, dict[int, MeasuredRow]] = {}
    for i, row in enumerate(measured.rows):
        if row.stage >= len(profiles):
            allowed = f"the pipeline has {len(profiles)} stages, from 0"
            raise InputError(f"rows[{i}].stage", row.stage, allowed)
        if row.tokens in times.setdefault(row.stage, {}):
            raise InputError(f"rows[{i}].tokens", row.tokens, f"stage {row.stage} already has this row")
        times[row.stage][row.tokens] = row
    return times


def _overridden(profile: StageProfile, rows: dict[int, MeasuredRow], tokens: int) -> StageProfile:
    below = max((n for n in rows if n <= tokens), default=None)
    above = min((n for n in rows if n >= tokens), default=None)
    if below is None or above is None:
        raise InputError("tokens", tokens, f"measured from {min(rows)} to {max(rows)}")
    share = (tokens - below) / (above - below) if above > below else 0.0

    def seconds(name: str) -> float:
        low, high = (getattr(rows[n], name) for n in (below, above))
        return float(low + share * (high - low)) / 1e3

    return StageProfile(
        layers=profile.layers,
        parameters=profile.parameters,
        forward_s=seconds("forward_ms"),
        backward_s=seconds("backward_ms"),
        recompute_s=seconds("recompute_ms"),
    )
