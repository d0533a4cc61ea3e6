"""Expert, context and sequence parallelism of a plan: times and memory against closed forms."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.cluster.collectives import Rates
from engine.cluster.gpus import gpu
from engine.errors import InputError
from engine.model.context_parallel import part_bytes, ring_late_s
from engine.model.iteration import Machine
from engine.model.kernels import WIDTH, Device, How
from engine.model.memory import MIXED, stage_memory
from engine.model.profile import Compute, stage_profiles
from engine.model.stages import roofline_profiles
from engine.model.transformer import Experts, LatentAttention, Transformer
from engine.plan.gradients import Parameters, StageReplicas, largest
from engine.plan.result import Option, PlanResult
from tests.engine.test_plan_search import answer_of, document, score

DENSE = Transformer(layers=4, hidden=1024, heads=16, kv_heads=4, ffn=4096, vocab=0, seq=4096, family="llama")
# Every block has experts: of Mixtral's kind, of Qwen3-MoE's (narrow ones), of DeepSeek-V3's (a shared one).
MIXTRAL = replace(DENSE, moe=Experts(experts=8, top_k=2))
QWEN3_MOE = replace(DENSE, moe=Experts(experts=128, top_k=8, width=768))
DEEPSEEK_V3 = replace(
    DENSE,
    kv_heads=16,
    moe=Experts(experts=64, top_k=8, width=512, shared=512),
    latent=LatentAttention(query_rank=384, key_rank=128, plain=64, rope=32, value=64),
)
FAMILIES = {"mixtral": MIXTRAL, "qwen3_moe": QWEN3_MOE, "deepseek_v3": DEEPSEEK_V3}
GPT = Transformer(layers=3, hidden=1024, heads=16, kv_heads=16, ffn=4096, vocab=0, seq=2048)
FUSED = How(recompute="none", sequence_parallel=True, fused_attention=True)
FULL = How(recompute="full", sequence_parallel=True, fused_attention=True)


def machine(*, tp: int = 1, node_bytes_per_s: float = 50e9, latency_s: float = 0.0) -> Machine:
    """Nodes of `tp` GPUs."""
    return Machine(
        device=Device(flops=400e12, hbm_bytes_per_s=2e12),
        hb_domain=tp,
        rates=Rates(hb_bytes_per_s=300e9, nic_bytes_per_s=node_bytes_per_s / tp),
        latency_s=latency_s,
    )


# --- experts ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize(("tp", "ep"), [(1, 1), (1, 2), (2, 8), (4, 4)])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_tokens_go_to_their_experts_and_back_in_every_pass(
    model: Transformer, tp: int, ep: int, recompute: str
) -> None:
    """Bytes = tokens · top_k · hidden · 2 · (ep − 1)/ep, twice in each pass of each block (GShard, §3.2)."""
    how = replace(FULL, recompute=recompute)
    assert model.moe is not None
    (stage,) = roofline_profiles(model, how, [machine(tp=tp)], tp=tp, micro_batch=3, dp=ep)
    size = 3 * model.seq * model.moe.top_k * model.hidden * WIDTH * (ep - 1) / ep
    passes = 3 if recompute == "full" else 2
    assert stage.ep_s == pytest.approx(model.layers * passes * 2 * size / 50e9)
    late = machine(tp=tp, latency_s=1e-3)
    (with_latency,) = roofline_profiles(model, how, [late], tp=tp, micro_batch=3, dp=ep)
    more_s = model.layers * passes * 2 * 1e-3 if ep > 1 else 0.0
    assert with_latency.ep_s - stage.ep_s == pytest.approx(more_s)
    assert with_latency.forward_s - stage.forward_s == pytest.approx(more_s / passes)


@pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES)
@given(ep=st.sampled_from([1, 2, 4, 8]), tp=st.sampled_from([1, 2]), replicas=st.sampled_from([8, 16, 64]))
@settings(max_examples=15, deadline=None)
def test_replicas_share_experts_and_nothing_else(model: Transformer, ep: int, tp: int, replicas: int) -> None:
    """States of 18 bytes a parameter; ZeRO-1 divides the moments' 8 by the replicas that have the same."""

    def memory(degree: int) -> Any:
        return stage_memory(
            model,
            FULL,
            tp=tp,
            micro_batch=1,
            blocks=4,
            moe_blocks=4,
            is_first=False,
            is_last=False,
            ep=degree,
        )

    whole, shared = memory(1), memory(ep)
    experts = 4 * model.moe.experts * model.expert_parameters / tp  # type: ignore[union-attr]
    others = (model.parameters / tp) - experts  # no embedding, and no matrix at the end
    assert whole.state_bytes == pytest.approx(18 * (others + experts), rel=1e-3)  # a final norm
    assert whole.state_bytes - shared.state_bytes == pytest.approx(18 * experts * (1 - 1 / ep))
    assert shared.total_bytes(3) - shared.state_bytes == pytest.approx(
        whole.total_bytes(3) - whole.state_bytes
    )
    sharded = shared.sharded_over(replicas, ep)
    saved = 8 * others * (1 - 1 / replicas) + 8 * experts / ep * (1 - ep / replicas)
    assert shared.state_bytes - sharded.state_bytes == pytest.approx(saved, rel=1e-3)


def along_a_ring(bytes_per_s: float) -> Callable[[float, int], float]:
    return lambda nbytes, replicas: 2 * nbytes * (replicas - 1) / (replicas * bytes_per_s)


@given(
    shared=st.floats(0, 1e10),
    experts=st.floats(0, 1e12),
    ep=st.sampled_from([1, 2, 8, 64]),
    groups=st.integers(1, 32),
)
def test_an_experts_gradients_are_summed_where_it_is(
    shared: float, experts: float, ep: int, groups: int
) -> None:
    """A ring among N = ep · groups replicas for the rest, and one among `groups` for 1/ep of the experts."""
    n, rate = ep * groups, 12.5e9
    seconds = StageReplicas(ep=ep).all_reduce_s(
        [Parameters(shared + experts, experts)], 2, n, along_a_ring(rate)
    )
    by_hand = 4 * shared * (n - 1) / (n * rate) + 4 * experts / ep * (groups - 1) / (groups * rate)
    assert seconds == pytest.approx(by_hand, rel=1e-6, abs=1e-12)


@given(
    stages=st.lists(
        st.tuples(st.integers(0, 20), st.integers(0, 20)).map(lambda pair: Parameters(sum(pair), pair[1])),
        min_size=1,
        max_size=8,
    ),
    ep=st.sampled_from([1, 2, 4]),
    replicas=st.sampled_from([4, 8, 64]),
)
def test_the_stages_that_are_left_take_as_long_as_all(
    stages: list[Parameters], ep: int, replicas: int
) -> None:
    joined = StageReplicas(ep=ep, cp=2, inside_bytes_per_s=100.0)
    summed_s = along_a_ring(10.0)
    every, few = (joined.all_reduce_s(some, 2, replicas, summed_s) for some in (stages, largest(stages)))
    assert few == pytest.approx(every)


# --- context ---------------------------------------------------------------------------------------------


@given(tokens=st.sampled_from([64, 256, 1024, 4096]), rate=st.sampled_from([50e9, 100e9, 400e9, 1.6e12]))
def test_a_ring_is_on_time_if_a_part_has_enough_tokens(tokens: int, rate: float) -> None:
    """With as many key heads as query heads, c tokens a GPU hide the ring if c ≥ F/B (Liu et al., §3)."""
    heads = replace(DENSE, kv_heads=16, seq=tokens * 8)
    device = Device(flops=400e12, hbm_bytes_per_s=math.inf)
    late = ring_late_s(heads, FUSED, device, sequences=1 / 8, tp=1, cp=8, bytes_per_s=rate)
    if tokens >= device.flops / rate:
        assert late.forward_s == 0.0
    else:
        sent_s = 2 * tokens * heads.hidden * WIDTH / rate
        computed_s = 4 * tokens**2 * heads.hidden / device.flops
        assert late.forward_s == pytest.approx(7 * (sent_s - computed_s))


@pytest.mark.parametrize("model", [DENSE, DEEPSEEK_V3], ids=["grouped heads", "latent"])
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("cp", [2, 8])
def test_without_compute_a_ring_takes_as_long_as_gathering_and_scattering(
    model: Transformer, tp: int, cp: int
) -> None:
    """(cp − 1)/cp of all keys and values forward, twice that backward (Megatron Core)."""
    instant = Device(flops=math.inf, hbm_bytes_per_s=math.inf)
    late = ring_late_s(model, FULL, instant, sequences=3 / cp, tp=tp, cp=cp, bytes_per_s=1e9)
    keys = 2 * 4 * 64 if model is DENSE else 16 * (64 + 32) + 16 * 64
    gathered_s = 3 * model.seq * keys * WIDTH / tp * (cp - 1) / cp / 1e9
    assert cp * part_bytes(model, 3 / cp, tp) == 3 * model.seq * keys * WIDTH / tp
    assert (late.forward_s, late.recompute_s) == pytest.approx((gathered_s, gathered_s))
    assert late.backward_s == pytest.approx(2 * gathered_s)


@pytest.mark.parametrize("model", [DENSE, MIXTRAL, DEEPSEEK_V3], ids=["dense", "experts", "latent"])
@pytest.mark.parametrize("cp", [2, 4])
def test_the_gpus_of_a_sequence_share_its_compute(model: Transformer, cp: int) -> None:
    """Where only FLOPs count and links are instant, the work of a GPU is 1/cp: causal parts are balanced."""
    fast = Machine(
        device=Device(flops=400e12, hbm_bytes_per_s=math.inf),
        hb_domain=1,
        rates=Rates(hb_bytes_per_s=math.inf, nic_bytes_per_s=math.inf),
    )
    (alone,), (shared,) = (
        roofline_profiles(model, FULL, [fast], tp=1, micro_batch=2, cp=degree) for degree in (1, cp)
    )
    for name in ("forward_s", "backward_s", "recompute_s"):
        assert cp * getattr(shared, name) == pytest.approx(getattr(alone, name))
    assert shared.parameters == alone.parameters
    (slow,) = roofline_profiles(model, FULL, [machine()], tp=1, micro_batch=2, cp=cp)
    assert slow.cp_s >= 0.0


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("cp", [2, 8])
def test_the_gpus_of_a_sequence_share_its_activations(recompute: str, cp: int) -> None:
    """sbh(34 + 5as/h)/t, 34sbh/t and 2sbh/t with s/cp tokens each (Korthikanti et al. 2022, table 2); the
    scores of s/cp queries with all s keys."""
    model, t, b = GPT, 4, 2
    how = How(recompute=recompute, sequence_parallel=True, fused_attention=False)  # type: ignore[arg-type]
    memory = stage_memory(
        model, how, tp=t, cp=cp, micro_batch=b, blocks=3, is_first=False, is_last=False, stored=MIXED
    )
    sbh = model.seq / cp * b * model.hidden
    scores = 5 * model.heads * model.seq / model.hidden
    each = {"none": (34 + scores) / t, "selective": 34 / t, "full": 2 / t}[recompute]
    assert memory.stored_bytes == pytest.approx(3 * sbh * each)
    alone = stage_memory(
        model, how, tp=t, micro_batch=b, blocks=3, is_first=False, is_last=False, stored=MIXED
    )
    assert memory.state_bytes == alone.state_bytes
    ring = 4 * part_bytes(model, b / cp, t)  # keys and values of two other GPUs, and their gradients
    assert memory.once_bytes - ring == pytest.approx(alone.once_bytes / cp)


# --- sequence --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", [2, 8])
def test_sequence_parallelism_divides_what_tensor_parallelism_leaves(t: int) -> None:
    """sbh(10 + 24/t + 5as/(ht)) without, sbh(34 + 5as/h)/t with it (Korthikanti et al. 2022, Eqs. 2, 4)."""
    model = GPT

    def stored(sequence_parallel: bool) -> float:
        how = How(recompute="none", sequence_parallel=sequence_parallel, fused_attention=False)
        return stage_memory(
            model, how, tp=t, micro_batch=1, blocks=1, is_first=False, is_last=False, stored=MIXED
        ).stored_bytes

    sbh, scores = model.seq * model.hidden, 5 * model.heads * model.seq / model.hidden
    assert stored(False) == pytest.approx(sbh * (10 + 24 / t + scores / t))
    assert stored(True) == pytest.approx(sbh * (34 + scores) / t)


# --- plans -----------------------------------------------------------------------------------------------

SHAPE = {"layers": 8, "hidden": 1024, "heads": 16, "vocab": 32_000, "seq": 4096, "family": "llama"}
MIXTRAL_CONFIG = {
    "model_type": "mixtral",
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 32_000,
    "max_position_embeddings": 4096,
}


def asked(gpus: list[int], job: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    joined = [(a, a + 1, 5.0, 100.0) for a in range(len(gpus) - 1)]
    whole = {"partitions": 2, "microbatches": 4, "model": MIXTRAL_CONFIG, **(job or {})}
    data = document(gpus, joined, whole, **{"policy": "1f1b", "max_dp_cells": 16, **more})
    for dc in data["datacenters"]:
        dc["gpu_type"] = "h100"
    return data


def best_of(data: dict[str, Any]) -> Option:
    answer: PlanResult = answer_of(data)
    assert answer.best is not None, answer.reason
    return answer.options[answer.best]


@pytest.mark.parametrize("method", ["search", "algorithm1"])
@pytest.mark.parametrize("ep", [2, 4])
def test_pipelines_are_whole_groups_of_experts(method: str, ep: int) -> None:
    answer = answer_of(asked([24], {"ep": ep}, method=method))
    feasible = [option for option in answer.options if option.feasible]
    assert feasible
    assert all(option.pipelines % ep == 0 and option.ep == ep for option in feasible)
    assert all(option.as_dict()["ep"] == ep for option in feasible)
    for option in answer.options:
        if option.pipelines % ep:
            assert option.reason == f"{option.pipelines} pipelines: must be a multiple of ep = {ep}"


def test_a_group_that_does_not_fit_is_the_reason() -> None:
    answer = answer_of(asked([6], {"ep": 4}))
    assert answer.best is None
    assert "ep = 4 needs at least 4 pipelines" in (answer.reason or "")


def test_an_option_says_what_its_stages_wait_for() -> None:
    data = asked([32, 32], {"ep": 8, "tp": 2, "cp": 2}, order=["dc0", "dc1"], method="algorithm1")
    data["datacenters"][0] |= {"intra_gbps": 100}
    data["datacenters"][1] |= {"intra_gbps": 400, "intra_latency_ms": 0.01}
    option = best_of(data)
    assert option.gpus_used == {"dc0": 32, "dc1": 32}
    assert option.pipelines == 8
    first, last = option.time_per_stage or ()
    sent = 4096 * 2 * 1024 * 2 * 7 / 8  # of one microbatch; 4 blocks a stage, three passes
    assert first.ep_ms == pytest.approx(1e3 * 24 * sent / 12.5e9)
    assert last.ep_ms == pytest.approx(1e3 * 24 * (sent / 50e9 + 1e-5))
    assert first.tp_ms > 0
    assert last.forward_ms > last.tp_ms / 3 + last.ep_ms / 3
    assert option.as_dict()["time_per_stage"][0]["ep_ms"] == first.ep_ms


def test_one_gpu_a_stage_waits_for_nobody() -> None:
    plain = best_of(asked([16])).as_dict()
    assert not {"ep", "cp", "time_per_stage"} & set(plain)


def test_an_mfu_does_not_say_what_stages_wait_for() -> None:
    assert best_of(asked([16], {"mfu": 0.4, "tp": 2})).time_per_stage is None


def test_a_ring_on_time_is_listed_as_no_wait() -> None:
    (first, *_) = best_of(asked([16], {"cp": 2})).time_per_stage or ()
    assert (first.cp_ms, first.tp_ms, first.ep_ms) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("layers", ["even", "balanced"])
def test_sharing_experts_saves_memory_and_costs_time(layers: str) -> None:
    alone, shared = (best_of(asked([16], {"ep": ep, "layers_per_stage": layers})) for ep in (1, 8))
    assert alone.pipelines == shared.pipelines == 8
    assert max((shared.memory_gb_per_gpu or {}).values()) < max((alone.memory_gb_per_gpu or {}).values())
    assert (shared.pp_time_ms or 0) > (alone.pp_time_ms or 0)
    assert (shared.allreduce_ms or 0) < (alone.allreduce_ms or 0)


@settings(max_examples=8, deadline=None)
@given(
    gpus=st.lists(st.integers(0, 24), min_size=1, max_size=2),
    ep=st.sampled_from([2, 4]),
    cp=st.sampled_from([1, 2]),
    layers=st.sampled_from(["even", "balanced"]),
    objective=st.sampled_from(["throughput", "cost", "cost_per_token"]),
)
def test_the_search_is_never_worse_than_algorithm_1(
    gpus: list[int], ep: int, cp: int, layers: str, objective: str
) -> None:
    job = {"ep": ep, "cp": cp, "layers_per_stage": layers}
    data = asked(gpus, job, max_dp_cells=8, objective=objective)
    for dc in data["datacenters"]:
        dc["intra_gbps"] = 1e9  # algorithm 1 counts nothing inside a data centre
    ours, theirs = score(answer_of(data)), score(answer_of({**data, "method": "algorithm1"}))
    assert ours >= theirs - 1e-6 * abs(theirs)


@settings(max_examples=12, deadline=None)
@given(
    memory_gb=st.sampled_from([4, 6, 8, 12, 24]),
    degrees=st.sampled_from([{"ep": 4}, {"cp": 2}, {"ep": 2, "cp": 2, "zero": 1}]),
    recompute=st.sampled_from(["none", "full"]),
)
def test_more_memory_is_never_worse_more_layers_never_take_less_and_units_scale(
    memory_gb: float, degrees: dict[str, int], recompute: str
) -> None:
    def seconds(*, more_gb: float = 0.0, layers: int = 8, scale: float = 1.0) -> float:
        job = {"model": {**MIXTRAL_CONFIG, "num_hidden_layers": layers}, "recompute": recompute, **degrees}
        data = asked([16], job, method="algorithm1", max_dp_cells=4)
        gpu = {"peak_tflops": 312 * scale, "memory_gb": memory_gb + more_gb, "hbm_gb_s": 2039 * scale}
        data["datacenters"][0] |= {"gpu_type": gpu, "link_gb_s": 300 * scale, "intra_gbps": 100 * scale}
        option = answer_of(data).options[-1]
        return math.inf if option.iteration_ms is None else option.iteration_ms

    here = seconds()
    assert seconds(more_gb=4) <= here * (1 + 1e-9)
    assert seconds(layers=10) >= here * (1 - 1e-9)
    assert seconds(scale=2) == pytest.approx(here / 2)


def test_gpus_of_a_sequence_sum_gradients_of_the_same_parameters() -> None:
    """On one pipeline: 4·p·(cp − 1)/(cp · BW) over the links of the node."""
    option = best_of(asked([4], {"model": {**SHAPE}, "cp": 2, "recompute": "none"}))
    assert option.pipelines == 1
    assert option.gpus_used == {"dc0": 4}
    assert option.cp == 2
    alone = best_of(asked([2], {"model": {**SHAPE}, "recompute": "none"}))
    assert alone.allreduce_ms == 0.0
    assert (option.allreduce_ms or 0) > 0.0
    assert (option.pp_time_ms or 0) < (alone.pp_time_ms or 0)


def test_without_sequence_parallelism_more_is_stored_and_less_is_computed_twice() -> None:
    job = {"model": SHAPE, "tp": 8, "recompute": "none"}
    with_it, without = (best_of(asked([16], {**job, "sequence_parallel": on})) for on in (True, False))
    for ours, theirs in zip(with_it.memory_per_stage or (), without.memory_per_stage or (), strict=True):
        assert ours.activation_bytes < theirs.activation_bytes
        assert ours.state_bytes == theirs.state_bytes


@pytest.mark.parametrize(
    ("job", "field"),
    [
        ({"ep": 3}, "job.ep"),
        ({"ep": 0}, "job.ep"),
        ({"model": SHAPE, "ep": 2}, "job.ep"),
        ({"cp": 3}, "job.cp"),
        ({"cp": 4096}, "job.cp"),
        ({"sequence_parallel": 2}, "job.sequence_parallel"),
        ({"model": None, "forward_ms": 1, "backward_ms": 2, "comm_to_compute": 1, "cp": 2}, "job.cp"),
        ({"model": None, "forward_ms": 1, "backward_ms": 2, "comm_to_compute": 1, "ep": 2}, "job.ep"),
    ],
)
def test_a_degree_that_does_not_divide_is_named(job: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        answer_of(asked([16], job))
    assert error.value.field == field


def test_a_gpu_whose_links_are_unknown_has_no_ring() -> None:
    data = asked([16], {"cp": 2})
    data["datacenters"][0]["gpu_type"] = {"peak_tflops": 312, "memory_gb": 80, "hbm_gb_s": 2039}
    with pytest.raises(InputError) as error:
        answer_of(data)
    assert error.value.field == "job.cp"


@pytest.mark.parametrize("model", FAMILIES.values(), ids=FAMILIES)
def test_experts_take_their_time_at_an_mfu_too(model: Transformer) -> None:
    """FLOPs and parameters of all stages are those of the model; two GPUs of a sequence take half."""
    every = replace(model, vocab=32_000)
    for gpus in (1, 2):
        compute = Compute(micro_batch=2, gpus=gpus, mfu=0.5, dtype_bytes=2, recompute="none")
        profiles = stage_profiles(every, compute, (gpu("h100"),) * 3)
        flops = sum(profile.forward_s for profile in profiles) * gpus * 0.5 * gpu("h100").flops(2)
        assert flops == pytest.approx(every.forward_flops(2))
        assert sum(profile.parameters for profile in profiles) == every.parameters
