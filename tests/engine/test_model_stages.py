"""Stage profiles from rooflines: against the iteration's beat, and overridden by what was measured."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cluster.collectives import Rates
from engine.errors import InputError
from engine.inputs import parse
from engine.model.iteration import Machine, iteration
from engine.model.kernels import Device, How, optimizer_s
from engine.model.layout import Strategies
from engine.model.memory import stage_parameters
from engine.model.stages import MeasuredProfile, measured_profiles, roofline_profiles
from engine.model.transformer import Experts, Transformer

MACHINE = Machine(
    device=Device(flops=250e12, hbm_bytes_per_s=1.4e12),
    hb_domain=8,
    rates=Rates(hb_bytes_per_s=150e9, nic_bytes_per_s=12.5e9),
)


def gpt(layers: int, vocab: int = 50_257, moe: Experts | None = None) -> Transformer:
    return Transformer(
        layers=layers, hidden=1536, heads=12, kv_heads=12, ffn=6144, vocab=vocab, seq=1024, moe=moe
    )


@given(
    pp=st.sampled_from([1, 2, 3, 5]),
    tp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 4]),
    recompute=st.sampled_from(["full", "selective", "none"]),
    sequence_parallel=st.booleans(),
    moe=st.sampled_from([None, Experts(experts=8, top_k=2)]),
)
def test_the_slowest_stage_is_the_beat(
    pp: int, tp: int, dp: int, recompute: str, sequence_parallel: bool, moe: Experts | None
) -> None:
    model = gpt(12, moe=moe)
    how = How(recompute=recompute, sequence_parallel=sequence_parallel, fused_attention=False)  # type: ignore[arg-type]
    profiles = roofline_profiles(model, how, [MACHINE] * pp, tp=tp, micro_batch=2, dp=dp)
    assert sum(p.layers for p in profiles) == 12
    copies = model.tied_parameters if pp > 1 else 0  # of the output matrix, on the last stage
    assert sum(p.parameters for p in profiles) == model.parameters + copies
    layout = Strategies(tp=tp, pp=pp, dp=dp, interleave=1, micro_batch=2)
    parts = iteration(model, how, layout, 2 * dp, MACHINE)
    step = optimizer_s(MACHINE.device, max(stage_parameters(model, layout)))
    beat = float(parts.compute + parts.tp + parts.ep) - float(step)  # one microbatch
    slowest = max(p.forward_s + p.backward_s + p.recompute_s for p in profiles)
    # The outer stages have one arrival less to gather than the beat, which is any stage's, allows for.
    assert slowest <= beat * (1 + 1e-9)
    assert slowest == pytest.approx(beat, rel=0.03)
    if sequence_parallel or pp == 1:
        assert slowest == pytest.approx(beat)


def test_each_stage_runs_on_its_own_gpus() -> None:
    how = How(recompute="none", sequence_parallel=True, fused_attention=False)
    slow = Machine(device=Device(flops=125e12, hbm_bytes_per_s=0.7e12), hb_domain=8, rates=MACHINE.rates)
    same = roofline_profiles(gpt(4, vocab=0), how, [MACHINE] * 2, tp=1, micro_batch=1)
    mixed = roofline_profiles(gpt(4, vocab=0), how, [MACHINE, slow], tp=1, micro_batch=1)
    assert mixed[0] == same[0]
    assert mixed[1].forward_s == pytest.approx(2 * same[1].forward_s)


def document(*rows: tuple[int, int, float]) -> MeasuredProfile:
    return parse(
        MeasuredProfile,
        {
            "device": "emulated",
            "model": {"layers": 4},
            "rows": [
                {"stage": stage, "tokens": tokens, "forward_ms": ms, "backward_ms": 2 * ms, "p95": 9}
                for stage, tokens, ms in rows
            ],
        },
    )


def test_what_was_measured_overrides() -> None:
    how = How(recompute="none", sequence_parallel=True, fused_attention=False)
    profiles = roofline_profiles(gpt(4), how, [MACHINE] * 2, tp=1, micro_batch=1)
    measured = document((1, 1024, 10.0), (1, 3072, 40.0))
    exact = measured_profiles(profiles, measured, 1024)
    assert exact[0] == profiles[0]
    assert (exact[1].forward_s, exact[1].backward_s, exact[1].recompute_s) == (0.010, 0.020, 0)
    assert exact[1].parameters == profiles[1].parameters
    assert measured_profiles(profiles, measured, 2048)[1].forward_s == pytest.approx(0.025)


@pytest.mark.parametrize(
    ("rows", "tokens", "field"),
    [
        (((2, 1024, 1.0),), 1024, r"rows\[0\]\.stage"),
        (((0, 1024, 1.0), (0, 1024, 2.0)), 1024, r"rows\[1\]\.tokens"),
        (((0, 1024, 1.0),), 2048, "tokens"),
    ],
)
def test_what_was_not_measured_is_refused(
    rows: tuple[tuple[int, int, float], ...], tokens: int, field: str
) -> None:
    how = How(recompute="none", sequence_parallel=True, fused_attention=False)
    profiles = roofline_profiles(gpt(4), how, [MACHINE] * 2, tp=1, micro_batch=1)
    with pytest.raises(InputError, match=f"^{field}"):
        measured_profiles(profiles, document(*rows), tokens)
