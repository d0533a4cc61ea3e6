"""Enumeration against brute force; placement, matrix and totals against each other; failures."""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from engine.cluster.collectives import Rates
from engine.model.iteration import Machine, iteration
from engine.model.kernels import Device, How
from engine.model.layout import Strategies, place
from engine.model.memory import training_memory
from engine.model.transformer import Experts, Transformer
from engine.plan.network.failures import Cluster, failures
from engine.plan.network.matrix import gpu_number, matrix
from engine.plan.network.strategies import (
    Chosen,
    Domains,
    NoneFits,
    Training,
    divisors,
    enumerate_strategies,
    fastest,
    fastest_of_rest,
)
from engine.plan.network.traffic import Job, Traffic, traffic

SELECTIVE = How(recompute="selective", sequence_parallel=True, fused_attention=False)
FULL = How(recompute="full", sequence_parallel=False, fused_attention=False)
MACHINE = Machine(
    device=Device(flops=250e12, hbm_bytes_per_s=1.4e12),
    hb_domain=8,
    rates=Rates(hb_bytes_per_s=150e9, nic_bytes_per_s=12.5e9),
)


def gpt(layers: int = 12, moe: Experts | None = None) -> Transformer:
    return Transformer(
        layers=layers, hidden=1536, heads=12, kv_heads=12, ffn=6144, vocab=50_257, seq=1024, moe=moe
    )


def training(**changes) -> Training:
    whole = Training(model=gpt(), how=SELECTIVE, batch=48, memory_bytes=80e9)
    return replace(whole, **changes)


def domains(gpus: int, size: int) -> Domains:
    return Domains(size=size, groups=((gpus // size, size),))


def brute(job: Training, gpus: int, machine: Machine, *, idle: bool, uneven: bool = False) -> float | None:
    """The least iteration time by trying every number, one strategy at a time."""
    best = None
    for tp, pp, dp in itertools.product(range(1, gpus + 1), repeat=3):
        used = tp * pp * dp
        if used > gpus or (used < gpus and not idle) or job.model.heads % tp or pp > job.model.layers:
            continue
        for v, b in itertools.product(range(1, job.model.layers + 1), range(1, job.batch + 1)):
            if (job.batch % (dp * b) and not uneven) or job.batch % b or dp * b > job.batch:
                continue
            if job.micro_batch is not None and b != job.micro_batch:
                continue
            broken = job.model.layers % (pp * v) or -(-job.batch // (dp * b)) % pp
            if v > 1 and (pp == 1 or broken):
                continue
            one = Strategies(tp=tp, pp=pp, dp=dp, interleave=v, micro_batch=b)
            if float(training_memory(job.model, job.how, one, job.batch).total) > job.memory_bytes:
                continue
            seconds = float(iteration(job.model, job.how, one, job.batch, machine).total)
            best = seconds if best is None else min(best, seconds)
    return best


@pytest.mark.parametrize("gpus", [1, 6, 8, 12])
@pytest.mark.parametrize("memory_gb", [80, 1.5, 0.9])
@pytest.mark.parametrize("micro_batch", [1, None])
def test_the_enumeration_finds_what_brute_force_finds(
    gpus: int, memory_gb: float, micro_batch: int | None
) -> None:
    job = training(model=gpt(6), batch=12, memory_bytes=memory_gb * 1e9, micro_batch=micro_batch)
    machine = replace(MACHINE, hb_domain=2 if gpus % 2 == 0 else 1)
    assert machine.hb_domain is not None
    for idle in (False, True):
        result = fastest(job, machine, domains(gpus, machine.hb_domain), leave_idle=idle)
        expected = brute(job, gpus, machine, idle=idle)
        if expected is None and not idle:  # falls back on strategies that leave GPUs idle
            expected = brute(job, gpus, machine, idle=True)
        if expected is None:
            assert isinstance(result, NoneFits)
            assert "memory" in result.reason
        else:
            assert isinstance(result, Chosen)
            assert result.iteration_s == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("gpus", [5, 7, 11])
@pytest.mark.parametrize("micro_batch", [1, None])
def test_unequal_replicas_are_found_too(
    gpus: int, micro_batch: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.plan.network.strategies.AT_ONCE", 7)  # what cannot be better is left out
    job = training(model=gpt(6), batch=12, micro_batch=micro_batch)
    machine = replace(MACHINE, hb_domain=1)
    result = fastest_of_rest(job, [machine], domains(gpus, 1))
    assert isinstance(result, Chosen)
    assert result.iteration_s == pytest.approx(brute(job, gpus, machine, idle=True, uneven=True), rel=1e-12)


@given(n=st.integers(1, 100_000))
def test_divisors(n: int) -> None:
    result = divisors(n)
    assert all(n % d == 0 for d in result)
    assert len(result) == sum((1 if d * d == n else 2) for d in range(1, int(n**0.5) + 1) if n % d == 0)
    assert result == sorted(set(result))


@given(gpus=st.integers(1, 96), idle=st.booleans())
def test_every_enumerated_strategy_is_legal(gpus: int, idle: bool) -> None:
    job = training(micro_batch=None)
    result = enumerate_strategies(job, gpus, leave_idle=idle)
    assert np.all(result.gpus <= gpus if idle else result.gpus == gpus)
    assert np.all(12 % result.tp == 0)
    assert np.all(job.batch % (result.dp * result.micro_batch) == 0)
    assert np.all(result.pp <= 12)
    several = result.interleave > 1
    assert np.all(12 % (result.pp * result.interleave)[several] == 0)
    assert np.all((result.microbatches(48) % result.pp)[several] == 0)
    assert np.all(result.pp[several] > 1)
    rows = list(zip(result.tp, result.pp, result.dp, result.interleave, result.micro_batch, strict=True))
    assert len(rows) == len(set(rows))


@settings(max_examples=40)
@given(gpus=st.sampled_from([8, 24, 48]), k=st.sampled_from([1, 2, 4, 8]), by=st.floats(1, 8))
def test_the_best_never_gets_worse_with_more(gpus: int, k: int, by: float) -> None:
    job = training()

    def best(machine: Machine, count: int = gpus) -> float:
        result = fastest(job, machine, domains(count, machine.hb_domain or count), leave_idle=True)
        assert isinstance(result, Chosen)
        return result.iteration_s

    machine = replace(MACHINE, hb_domain=k)
    before, rates = best(machine), machine.rates
    assert best(replace(machine, hb_domain=8)) <= before
    assert best(machine, 2 * gpus) <= before
    assert best(replace(machine, rates=replace(rates, hb_bytes_per_s=rates.hb_bytes_per_s * by))) <= before
    assert best(replace(machine, rates=replace(rates, nic_bytes_per_s=rates.nic_bytes_per_s * by))) <= before
    assert best(replace(machine, hb_domain=None)) <= before * (1 + 1e-12)


def test_nothing_fits_says_why() -> None:
    none = fastest(training(memory_bytes=1e6), MACHINE, domains(8, 8))
    assert isinstance(none, NoneFits)
    assert none.reason.startswith("memory: at least")
    none = fastest(training(pp=5, interleave=2), MACHINE, domains(8, 8))
    assert isinstance(none, NoneFits)
    assert "interleave 2" in none.reason


@st.composite
def jobs(draw: st.DrawFn, stages: Sequence[int] = (1, 2, 3, 4)) -> Job:
    tp, pp, dp = (draw(st.sampled_from(sizes)) for sizes in ([1, 2, 3, 4, 6], stages, [1, 2, 3, 4, 6, 8]))
    k = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24]))
    used = tp * pp * dp
    moe = draw(st.sampled_from([None, Experts(experts=4, top_k=2, every=2), Experts(experts=6, every=3)]))
    v = draw(st.sampled_from([1, 3])) if pp in (2, 4) else 1
    batch = dp * pp * draw(st.integers(1, 2))
    spare = draw(st.integers(0, 2)) * k if used % k == 0 else -used % k
    gpus = used + spare
    layout = Strategies(tp=tp, pp=pp, dp=dp, interleave=v, micro_batch=1)
    assume(used // int(place(gpt(), layout, k).box) <= domains(gpus, k).boxes(place(gpt(), layout, k).box))
    how = draw(st.sampled_from([FULL, SELECTIVE, replace(FULL, sequence_parallel=True)]))
    return Job(model=gpt(moe=moe), how=how, strategies=layout, batch=batch, hb_domain=k, gpus=gpus)


def sizes(job: Job) -> tuple[int, int, int]:
    return int(job.strategies.tp), int(job.strategies.pp), int(job.strategies.dp)


@given(jobs())
def test_every_rank_has_a_gpu_of_its_own_and_groups_lie_as_their_grids_say(job: Job) -> None:
    tp, pp, dp = sizes(job)
    where = {(s, d, t): gpu_number(job, s, d, t) for s in range(pp) for d in range(dp) for t in range(tp)}
    assert len(set(where.values())) == tp * pp * dp
    assert all(0 <= number < job.gpus for number in where.values())
    k, placement = job.hb_domain, job.placement
    for s, d in itertools.product(range(pp), range(dp)):
        group = [where[s, d, t] // k for t in range(tp)]
        assert all(group.count(domain) >= int(placement.tp.x) for domain in group)
    for s, t in itertools.product(range(pp), range(tp)):
        group = [where[s, d, t] // k for d in range(dp)]
        assert all(group.count(domain) >= int(placement.dp.x) for domain in group)


@given(jobs())
def test_the_matrix_adds_up_to_the_totals(job: Job) -> None:
    result, cells = traffic(job), matrix(job)
    assert all(sender != receiver for sender, receiver, _ in cells)
    for kind in ("tp", "dp", "pp", "ep"):
        total = sum(size for (_, _, each), size in cells.items() if each == kind)
        assert total == pytest.approx(result.hb_bytes[kind] + result.nic_bytes[kind])
    first_kind: dict[tuple[int, int], str] = {}
    for kind in ("tp", "dp", "pp", "ep"):
        for sender, receiver, each in cells:
            if each == kind:
                first_kind.setdefault((sender, receiver), kind)
    for kind, count in result.pairs.items():
        if kind == "none":
            assert count == job.gpus * (job.gpus - 1) - len(first_kind)
        else:
            assert count == list(first_kind.values()).count(kind)


@given(jobs())
def test_what_leaves_a_domain_stays_on_its_rail(job: Job) -> None:
    tp, pp, dp = sizes(job)
    k = job.hb_domain
    assume(tp * pp * dp == job.gpus)  # where GPUs are idle, groups may change position
    result, outside = traffic(job), dict.fromkeys(("tp", "dp", "pp", "ep"), 0.0)
    even = pp // int(job.placement.stages_inside) % 2 == 0
    for (sender, receiver, kind), size in matrix(job).items():
        if sender // k != receiver // k:
            outside[kind] += size
            wraps = kind == "pp" and job.chunks > 1 and not even
            assert wraps or sender % k == receiver % k
    assert outside == pytest.approx(result.nic_bytes)


@given(jobs(stages=(1,)))
def test_times_and_traffic_are_of_the_same_bytes(job: Job) -> None:
    """A pipeline of one stage: seconds of each part are its bytes per GPU over the rates."""
    machine = replace(MACHINE, hb_domain=job.hb_domain)
    parts = iteration(job.model, job.how, job.strategies, job.batch, machine)
    result, ranks = traffic(job), int(job.strategies.gpus)
    for kind in ("tp", "dp", "ep"):
        seconds = result.hb_bytes[kind] / ranks / machine.rates.hb_bytes_per_s
        seconds += result.nic_bytes[kind] / ranks / machine.rates.nic_bytes_per_s
        assert float(getattr(parts, kind)) == pytest.approx(seconds)


def test_gradients_of_experts_are_reduced_only_where_the_same_expert_is() -> None:
    """Eight experts on eight GPUs: none has a second copy, so only the rest of the model is all-reduced."""
    model, gpus = gpt(moe=Experts(experts=8, every=2)), 8
    layout = Strategies(tp=1, pp=1, dp=gpus, interleave=1, micro_batch=1)
    job = Job(model=model, how=SELECTIVE, strategies=layout, batch=gpus, hb_domain=gpus, gpus=gpus)
    on_every_gpu = (
        model.layers * model.layer_parameters
        + model.moe_layers * (model.router_weights - model.expert_parameters)
        + model.embedding_parameters
        + model.head_parameters
        - model.tied_parameters
    )
    ring = 2 * (gpus - 1) / gpus
    assert traffic(job).hb_bytes["dp"] == pytest.approx(gpus * ring * 2 * on_every_gpu)


@given(jobs())
def test_hand_overs_cross_every_chunk_once_each_way(job: Job) -> None:
    result = traffic(job)
    activation = 2 * 1024 * 1536  # two bytes a number, one sequence
    transfers = 2 * (job.stages * job.chunks - 1)
    expected = transfers * activation * job.microbatches * int(job.strategies.dp)
    assert result.hb_bytes["pp"] + result.nic_bytes["pp"] == pytest.approx(expected)


@given(
    tp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2, 4]),
    v=st.sampled_from([1, 3]),
    m=st.integers(1, 3),
)
def test_tensor_parallel_bytes_by_hand(tp: int, pp: int, v: int, m: int) -> None:
    """Every collective over t GPUs sends (t−1)/t of the buffer per GPU; an all-reduce twice that."""
    v = v if pp > 1 else 1
    layout = Strategies(tp=tp, pp=pp, dp=2, interleave=v, micro_batch=1)
    buffer = 2 * 1024 * 1536 * (tp - 1) / tp * (m * pp) * tp * 2  # both replicas, all their GPUs
    # All-reduces: 6 a block with full recomputation, one for the embedding, one for the head; a gather per
    # arrival.
    full = Job(model=gpt(), how=FULL, strategies=layout, batch=2 * m * pp, hb_domain=4, gpus=8 * pp * tp)
    expected = (2 * (6 * 12 + 2) + 2 * (pp * v - 1)) * buffer
    assert traffic(full).hb_bytes["tp"] == pytest.approx(expected)
    # Gathers and scatters: 4 forward, 6 backward; 2 for the embedding, 2 for the head.
    selective = replace(full, how=SELECTIVE)
    assert traffic(selective).hb_bytes["tp"] == pytest.approx((10 * 12 + 4) * buffer)


def test_shares_of_pairs_and_bytes_are_whole() -> None:
    layout = Strategies(tp=2, pp=2, dp=4, interleave=1, micro_batch=1)
    job = Job(model=gpt(), how=SELECTIVE, strategies=layout, batch=16, hb_domain=4, gpus=16)
    result: Traffic = traffic(job)
    parts = result.as_dict()
    assert sum(parts["pairs"].values()) == pytest.approx(1)  # type: ignore[attr-defined]
    assert sum(parts["bytes"].values()) == pytest.approx(result.total_bytes)  # type: ignore[attr-defined]


def cluster(**changes) -> Cluster:
    job = training(model=gpt(12), batch=64)
    machine = replace(MACHINE, hb_domain=8)
    result = fastest(job, machine, domains(64, 8), leave_idle=True)
    assert isinstance(result, Chosen)
    whole = Cluster(
        training=job, machine=machine, gpus=64, hb_domain=8, switch_radix=8, module=4, before=result
    )
    return replace(whole, **changes)


def test_failures_cost_what_the_paper_says() -> None:
    result = failures(cluster())
    lost = {(each.case, each.design, each.recovery.split()[0]): each.gpus_lost for each in result}
    assert lost == {
        ("link", "rail_only", "the"): 1,
        ("link", "rail_optimised", "the"): 1,
        ("rail switch", "rail_only", "its"): 8,  # one tier: a switch of 8 ports is one rail of 8 domains
        ("rail switch", "rail_optimised", "its"): 4,  # three tiers: half of its ports lead down
        ("platform", "rail_only", "its"): 8,
        ("platform", "rail_optimised", "its"): 8,
        ("GPU, idle one in its domain", "rail_only", "an"): 1,
        ("GPU, idle one in its domain", "rail_optimised", "an"): 1,
        ("GPU, domain full", "rail_only", "the"): 8,
        ("GPU, domain full", "rail_only", "optical"): 4,
        ("GPU, domain full", "rail_optimised", "a"): 1,
    }


@pytest.mark.parametrize(
    ("radix", "rails_lose", "spines_lose"),
    [(8, 8, 4), (16, 16, 8), (32, 32, 16), (64, 64, 64), (4, 2, 2)],
)
def test_a_switch_takes_the_gpus_behind_it(radix: int, rails_lose: int, spines_lose: int) -> None:
    """64 GPUs in domains of 8: rails of 8 share the ports of one switch as long as one tier joins them."""
    result = failures(cluster(switch_radix=radix))
    lost = {each.design: each.gpus_lost for each in result if each.case == "rail switch"}
    assert lost == {"rail_only": rails_lose, "rail_optimised": spines_lose}


def test_after_a_failure_nothing_is_faster() -> None:
    before = cluster().before.iteration_s
    for each in failures(cluster()):
        assert each.iteration_s is not None
        assert each.before_s == pytest.approx(before)  # a dense model needs no spines
        assert each.iteration_s >= before * (1 - 1e-12)
        assert each.spared_iteration_s >= before * (1 - 1e-12)
    platform = next(each for each in failures(cluster()) if each.case == "platform")
    assert platform.iteration_s is not None
    for fewer in range(8, 64, 8):  # seven domains are left: some of them alone do no better
        result = fastest(cluster().training, cluster().machine, domains(fewer, 8))
        assert isinstance(result, Chosen)
        assert platform.iteration_s <= result.iteration_s
    foreign = next(each for each in failures(cluster()) if "NIC speed" in each.recovery)
    assert foreign.spared_iteration_s > before


def test_a_hole_in_every_domain_leaves_smaller_boxes() -> None:
    """TP 4 × DP 2 fill a domain of 8; where each has lost two, they still fit four by four."""
    job = training(model=gpt(12), batch=64, tp=4, pp=1, dp=2)
    result = fastest(job, replace(MACHINE, hb_domain=8), domains(16, 8))
    assert isinstance(result, Chosen)
    after = failures(cluster(training=job, before=result, gpus=16, switch_radix=4))
    switch = next(each for each in after if each.case == "rail switch" and each.design == "rail_only")
    assert switch.gpus_lost == 4  # a switch of 4 ports holds two rails of 2
    assert switch.iteration_s is not None
    assert switch.iteration_s > result.iteration_s


def test_a_fixed_strategy_may_not_fit_what_is_left() -> None:
    job = training(model=gpt(12), batch=64, tp=2, pp=2, dp=16)
    result = fastest(job, replace(MACHINE, hb_domain=8), domains(64, 8))
    assert isinstance(result, Chosen)
    after = failures(cluster(training=job, before=result))
    platform = next(each for each in after if each.case == "platform")
    assert platform.iteration_s is None
    assert platform.reason is not None
