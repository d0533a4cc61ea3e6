"""The cost model: kernels against plain FLOPs, the pipeline against the simulator, published runs,
monotony.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.cluster.collectives import Rates
from engine.cluster.gpus import catalogue, gpu
from engine.errors import InputError
from engine.model import kernels
from engine.model.efficiency import Efficiency, published_runs, shipped
from engine.model.flops import hardware_flops, model_flops, printed_hardware_flops
from engine.model.iteration import Machine, iteration
from engine.model.kernels import Device, How
from engine.model.layout import Strategies
from engine.model.transformer import Experts, Transformer
from engine.reproduce.rail_only import FULL, SELECTIVE, held_out, run_s
from engine.schedule.scenario import Scenario, Times
from engine.simulate import simulate

NO_MEMORY_TIME = Device(flops=1e12, hbm_bytes_per_s=1e40)
PLAIN = How(recompute="none", sequence_parallel=False, fused_attention=False)
MACHINE = Machine(
    device=Device(flops=250e12, hbm_bytes_per_s=1.4e12),
    hb_domain=8,
    rates=Rates(hb_bytes_per_s=150e9, nic_bytes_per_s=12.5e9),
)
hows = st.builds(
    How,
    recompute=st.sampled_from(["full", "selective", "none"]),
    sequence_parallel=st.booleans(),
    fused_attention=st.booleans(),
)


experts = st.builds(
    Experts, experts=st.sampled_from([4, 8]), top_k=st.integers(1, 3), every=st.integers(1, 3)
)


@st.composite
def shapes(draw: st.DrawFn, moe: bool = False) -> Transformer:
    heads = draw(st.sampled_from([8, 16, 24]))
    family = draw(st.sampled_from(["gpt", "llama"]))
    return Transformer(
        layers=draw(st.sampled_from([8, 12, 16])),
        hidden=heads * draw(st.sampled_from([32, 64, 128])),
        heads=heads,
        kv_heads=heads if family == "gpt" else 8,
        ffn=draw(st.integers(1, 20)) * 256,
        vocab=draw(st.sampled_from([0, 1000, 50_257])),
        seq=draw(st.sampled_from([128, 1024])),
        family=family,
        moe=draw(experts) if moe else None,
    )


layouts = st.builds(
    Strategies,
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([1, 2, 4, 16]),
    interleave=st.just(1),
    micro_batch=st.sampled_from([1, 2]),
)


@given(model=shapes(), micro_batch=st.integers(1, 4), tp=st.sampled_from([1, 2, 4, 8]))
def test_with_free_memory_a_block_takes_what_its_flops_take(
    model: Transformer, micro_batch: int, tp: int
) -> None:
    whole = kernels.block(model, PLAIN, NO_MEMORY_TIME, micro_batch, tp)
    expected = model.layer_forward_flops(micro_batch) / 1e12 / tp
    assert whole.forward_s == pytest.approx(expected)
    assert whole.backward_s == pytest.approx(2 * expected)
    head = kernels.head(model, NO_MEMORY_TIME, micro_batch, tp)
    assert head.total_s == pytest.approx(3 * model.head_forward_flops(micro_batch) / 1e12 / tp)


@given(model=shapes(moe=True), how=hows)
def test_hardware_flops_are_what_the_kernels_run(model: Transformer, how: How) -> None:
    assert model.moe is not None
    dense = kernels.block(model, how, NO_MEMORY_TIME, 1, 1).total_s
    sparse = kernels.moe_block(model, how, NO_MEMORY_TIME, 1, 1, model.moe.experts).total_s
    ran = (model.layers - model.moe_layers) * dense + model.moe_layers * sparse
    ran += kernels.head(model, NO_MEMORY_TIME, 1, 1).total_s
    counted = hardware_flops(model, 1, how.recompute, fused_attention=how.fused_attention)
    assert ran * 1e12 == pytest.approx(counted)


@given(model=shapes(), how=hows, micro_batch=st.integers(1, 4))
def test_a_block_is_never_faster_than_its_flops_or_split_worse_than_whole(
    model: Transformer, how: How, micro_batch: int
) -> None:
    times = [kernels.block(model, how, MACHINE.device, micro_batch, tp).total_s for tp in (1, 2, 4, 8)]
    assert all(more < less for less, more in pairwise(times))
    assert all(t * 8 >= times[0] * (1 - 1e-12) for t in times)  # splitting over 8 gains at most 8
    ideal = 3 * model.layer_forward_flops(micro_batch) / MACHINE.device.flops
    assert times[0] >= ideal


def test_flops_are_the_published_formulas() -> None:
    model = Transformer(layers=96, hidden=12_288, heads=96, kv_heads=96, ffn=49_152, vocab=51_200, seq=2048)
    base = 72 * 64 * 2048 * 96 * 12_288**2
    s, h, tail = 2048, 12_288, 51_200 / (12 * 96 * 12_288)
    assert model_flops(model, 64) == pytest.approx(base * (1 + s / (6 * h) + tail), rel=1e-14)
    assert printed_hardware_flops(model, 64) == pytest.approx(base * (1 + s / (3 * h) + tail), rel=1e-14)
    exact = base * (1 + 2 * s / (9 * h) + tail)
    assert hardware_flops(model, 64, "selective") == pytest.approx(exact, rel=1e-14)
    full = base * (4 / 3 * (1 + s / (6 * h)) + tail)  # 96·B·s·L·h²·(…): the blocks' forward pass twice
    assert hardware_flops(model, 64, "full") == pytest.approx(full, rel=1e-14)


@given(shape=st.tuples(st.integers(1, 6), st.integers(1, 12)), how=hows)
def test_the_pipeline_takes_what_the_simulator_says(shape: tuple[int, int], how: How) -> None:
    """Equal stages and free links: 1F1B on the simulator against M beats and a bubble of P − 1."""
    stages, microbatches = shape
    model = Transformer(layers=stages, hidden=512, heads=8, kv_heads=8, ffn=2048, vocab=0, seq=256)
    strategies = Strategies(tp=1, pp=stages, dp=1, interleave=1, micro_batch=1)
    free = replace(MACHINE, rates=Rates(hb_bytes_per_s=1e40, nic_bytes_per_s=1e40))
    parts = iteration(model, how, strategies, microbatches, free)
    one = kernels.block(model, how, free.device, 1, 1)
    scenario = Scenario(
        stages=stages,
        microbatches=microbatches,
        times=Times(
            forward=float(one.forward_s) * 1e3, backward=float(one.backward_s + one.recompute_s) * 1e3
        ),
        policy="1f1b",
        spans=False,
    )
    makespan = simulate(scenario).makespan
    assert makespan is not None
    step = kernels.optimizer_s(free.device, model.layer_parameters)
    assert float(parts.total) == pytest.approx(makespan / 1e3 + step, rel=1e-9)


@pytest.mark.parametrize("run", published_runs(), ids=lambda run: run.name)
def test_one_set_of_efficiencies_gives_the_published_times(run) -> None:
    assert run_s(run, FULL, shipped()) == pytest.approx(run.full_s, rel=0.05)
    assert run_s(run, SELECTIVE, shipped()) == pytest.approx(run.selective_s, rel=0.05)


def test_runs_outside_the_fit_come_out_too() -> None:
    for run in held_out():
        assert run.ours == pytest.approx(run.measured, rel=0.08), run.name


def spent(model: Transformer, how: How, layout: Strategies, machine: Machine) -> np.ndarray:
    batch = 8 * int(layout.dp * layout.micro_batch)
    return np.asarray(iteration(model, how, layout, batch, machine).total)


@given(model=shapes(moe=True), how=hows, layout=layouts, k=st.sampled_from([1, 2, 4, 8]), by=st.floats(1, 10))
def test_more_of_anything_is_never_slower(
    model: Transformer, how: How, layout: Strategies, k: int, by: float
) -> None:
    machine = replace(MACHINE, hb_domain=k)
    rates, device = machine.rates, machine.device
    better = [
        replace(machine, rates=replace(rates, hb_bytes_per_s=rates.hb_bytes_per_s * by)),
        replace(machine, rates=replace(rates, nic_bytes_per_s=rates.nic_bytes_per_s * by)),
        replace(machine, device=replace(device, flops=device.flops * by)),
        replace(machine, device=replace(device, hbm_bytes_per_s=device.hbm_bytes_per_s * by)),
        replace(machine, hb_domain=None),
        replace(machine, spines=True),
    ]
    before = spent(model, how, layout, machine)
    for machine in better:
        assert spent(model, how, layout, machine) <= before * (1 + 1e-12)


@given(
    model=shapes(moe=True),
    how=hows,
    layout=layouts,
    k=st.sampled_from([1, 2, 3, 4, 6, 12]),
    times=st.integers(1, 6),
)
def test_larger_hb_domains_are_never_slower(
    model: Transformer, how: How, layout: Strategies, k: int, times: int
) -> None:
    less = spent(model, how, layout, replace(MACHINE, hb_domain=k))
    more = spent(model, how, layout, replace(MACHINE, hb_domain=k * times))
    assert more <= less * (1 + 1e-12)


@given(model=shapes(moe=True), how=hows, layout=layouts, by=st.floats(0.01, 100))
def test_units_scale(model: Transformer, how: How, layout: Strategies, by: float) -> None:
    rates, device = MACHINE.rates, MACHINE.device
    scaled = replace(
        MACHINE,
        device=Device(flops=device.flops * by, hbm_bytes_per_s=device.hbm_bytes_per_s * by),
        rates=Rates(hb_bytes_per_s=rates.hb_bytes_per_s * by, nic_bytes_per_s=rates.nic_bytes_per_s * by),
    )
    assert spent(model, how, layout, scaled) * by == pytest.approx(spent(model, how, layout, MACHINE))


@given(model=shapes(), how=hows, layout=layouts)
def test_dense_models_run_alike_with_and_without_spines(
    model: Transformer, how: How, layout: Strategies
) -> None:
    with_spines = spent(model, how, layout, replace(MACHINE, spines=True))
    assert with_spines == spent(model, how, layout, MACHINE)


def test_arrays_and_numbers_give_the_same() -> None:
    model = Transformer(layers=24, hidden=1024, heads=16, kv_heads=16, ffn=4096, vocab=50_257, seq=1024)
    many = Strategies(
        tp=np.array([1, 2, 8, 16]),
        pp=np.array([1, 4, 24, 5]),
        dp=np.array([2, 1, 4, 8]),
        interleave=np.array([1, 2, 1, 1]),
        micro_batch=np.array([4, 1, 2, 1]),
    )
    together = iteration(model, SELECTIVE, many, 64, MACHINE).total
    alone = [float(iteration(model, SELECTIVE, many.at(i), 64, MACHINE).total) for i in range(4)]
    assert list(together) == alone


def test_an_expert_more_or_less_changes_only_parameters_and_router() -> None:
    dense = Transformer(layers=4, hidden=512, heads=8, kv_heads=8, ffn=2048, vocab=0, seq=256)
    sparse = replace(dense, moe=Experts(experts=8, top_k=1, every=2))
    routers = 2 * 512 * 8
    assert sparse.parameters == dense.parameters + 2 * 7 * (2 * 512 * 2048 + 2048 + 512) + routers
    assert sparse.forward_flops(1) == dense.forward_flops(1) + 2 * routers * 256
    with pytest.raises(ValueError, match="top_k 9"):
        Experts(experts=8, top_k=9)


@pytest.mark.parametrize("kind", catalogue())
def test_every_gpu_of_the_catalogue_can_be_asked(kind: str) -> None:
    model = Transformer(layers=8, hidden=1024, heads=16, kv_heads=16, ffn=4096, vocab=1000, seq=512)
    device = Device.of(gpu(kind), shipped())
    strategies = Strategies(tp=2, pp=2, dp=2, interleave=2, micro_batch=1)
    total = iteration(model, SELECTIVE, strategies, 16, replace(MACHINE, device=device)).total
    assert 0 < float(total) < 60


def test_shares_above_one_and_gpus_without_the_format_are_refused() -> None:
    with pytest.raises(ValueError, match=r"hb 1\.5"):
        Efficiency(gemm=0.5, hbm=0.5, hb=1.5, nic=0.5)
    with pytest.raises(ValueError, match="nic_bytes_per_s 0"):
        Rates(hb_bytes_per_s=1.0, nic_bytes_per_s=0)
    old = replace(gpu("t4"), peak_flops={"fp32": 8.1e12})
    with pytest.raises(InputError, match="dtype_bytes"):
        Device.of(old, shipped())
