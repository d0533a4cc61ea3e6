"""Profiles of layers in the documents of plan, simulate, sweep and profile: one form, sums over a stage."""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.commands import plan as plan_command
from engine.commands import profile as profile_command
from engine.commands import simulate as simulate_command
from engine.commands import sweep as sweep_command
from engine.errors import InputError
from engine.inputs import parse
from engine.model.measured import times_of_profile
from engine.model.profiled_stages import layers_of_stages
from engine.plan.answer import plan
from engine.plan.request import PlanRequest
from engine.schedule.scenario import Scenario
from engine.simulate import simulate

DATA = Path(__file__).parents[2] / "engine/data/sailor"
TIMES, SIZES = DATA / "layer_profiles.json", DATA / "layer_sizes.json"
MODEL, MICRO_BATCH, TP, M = "opt-350m", 4, 4, 8
CUT = [range(10), range(10, 20), range(20, 26)]
GPUS = ["GH-96", "GH-96", "RTX-3090"]


def rows(
    gpu: str, micro_batch: int = MICRO_BATCH, tp: int = TP, model: str = MODEL
) -> dict[str, list[float]]:
    table: dict[str, list[float]] = json.loads(TIMES.read_text())[model][gpu][str(micro_batch)][str(tp)]
    return table


def sums(which: int) -> list[float]:
    """Seconds of each stage of CUT on GPUS: 0 forward, 1 backward, 2 update."""
    return [sum(rows(gpu)[str(n)][which] for n in layers) for gpu, layers in zip(GPUS, CUT, strict=True)]


def request(**job: Any) -> dict[str, Any]:
    tables = {"times": json.loads(TIMES.read_text()), "sizes": json.loads(SIZES.read_text())}
    profiles = {**tables, "layers_per_stage": [10, 10, 6], "seq": 2048, **job.pop("layer_profiles", {})}
    return {
        "datacenters": [
            {
                "name": "east",
                "gpus": 8,
                "gpu_type": {"peak_tflops": 60, "memory_gb": 96, "hbm_gb_s": 4000},
                "profiled_gpu": "GH-96",
                "price_per_gpu_hour": 3,
            },
            {
                "name": "west",
                "gpus": 4,
                "gpu_type": {"peak_tflops": 35, "memory_gb": 24, "hbm_gb_s": 936},
                "profiled_gpu": "RTX-3090",
                "price_per_gpu_hour": 0.5,
            },
        ],
        "links": [{"between": ["east", "west"], "latency_ms": 3, "bandwidth_gbps": 8}],
        "policy": "1f1b",
        "job": {
            "model": MODEL,
            "partitions": 3,
            "microbatches": M,
            "micro_batch": MICRO_BATCH,
            "tp": TP,
            **job,
            "layer_profiles": profiles,
        },
    }


def test_a_plan_over_two_types_of_gpu_takes_the_sums_of_each_stage() -> None:
    best = plan(parse(PlanRequest, request())).options[0]
    assert [(part.dc, part.stages) for part in best.partitions] == [("east", 2), ("west", 1)]
    transfer_ms = 1e3 * MICRO_BATCH * 8388608 / 1e9  # an activation at 8 Gbit/s
    scenario = {
        "stages": 3,
        "dc_of_stage": [0, 0, 1],
        "microbatches": M,
        "policy": "1f1b",
        "times": {"forward": [1e3 * s for s in sums(0)], "backward": [1e3 * s for s in sums(1)]},
        "wan": {"latency": 3, "transfer": transfer_ms},
        "lan": {"latency": 0, "transfer": transfer_ms * 8 / 100},  # 100 Gbit/s by default
    }
    assert best.pp_time_ms == pytest.approx(simulate(parse(Scenario, scenario)).makespan)
    assert best.allreduce_ms == 0
    assert best.update_ms == pytest.approx(1e3 * max(sums(2)))
    assert best.iteration_ms == pytest.approx(best.pp_time_ms + best.update_ms)
    assert best.tokens_per_s == pytest.approx(M * MICRO_BATCH * 2048 / best.iteration_ms * 1e3)
    sizes = json.loads(SIZES.read_text())[MODEL][str(TP)]
    parameters = [sum(sizes[str(n)]["params_floats"] for n in layers) for layers in CUT]
    kept_bytes = [MICRO_BATCH * sum(sizes[str(n)]["act_mem_bytes"] for n in layers) for layers in CUT]
    held = [
        24 * p + 5.06e9 + k * (3 - stage)
        for stage, (p, k) in enumerate(zip(parameters, kept_bytes, strict=True))
    ]
    assert best.memory_gb_per_gpu == pytest.approx({"east": max(held[:2]) / 1e9, "west": held[2] / 1e9})


def test_gradients_of_fp32_are_summed_over_the_replicas_of_a_stage() -> None:
    document = request(partitions=1, layer_profiles={"layers_per_stage": None})
    document["datacenters"] = document["datacenters"][:1]
    document["links"] = []
    option = plan(parse(PlanRequest, document)).options[-1]
    parameters = TP * sum(
        size["params_floats"] for size in json.loads(SIZES.read_text())[MODEL][str(TP)].values()
    )
    assert option.pipelines == 2
    assert option.allreduce_ms == pytest.approx(1e3 * 4 * parameters / 12.5e9)  # 100 Gbit/s by default


def test_doubling_every_time_doubles_the_plan_but_for_what_is_sent() -> None:
    document = request()
    for degrees in document["job"]["layer_profiles"]["times"][MODEL].values():
        for layers in itertools.chain.from_iterable(each.values() for each in degrees.values()):
            for name, seconds in layers.items():
                layers[name] = [2 * s for s in seconds]
    document["links"][0] |= {"latency_ms": 0, "bandwidth_gbps": 1e9}
    document["datacenters"][0]["intra_gbps"] = 1e9
    twice = plan(parse(PlanRequest, document)).options[0]
    document = request()
    document["links"][0] |= {"latency_ms": 0, "bandwidth_gbps": 1e9}
    document["datacenters"][0]["intra_gbps"] = 1e9
    once = plan(parse(PlanRequest, document)).options[0]
    assert once.iteration_ms is not None
    assert twice.iteration_ms == pytest.approx(2 * once.iteration_ms, rel=1e-6)


def test_a_stage_that_does_not_fit_its_gpu_is_not_placed_there() -> None:
    document = request(partitions=1, micro_batch=16, layer_profiles={"layers_per_stage": None})
    document["datacenters"], document["links"] = document["datacenters"][1:], []
    result = plan(parse(PlanRequest, document))
    assert not result.feasible
    assert "GB per GPU for one microbatch; RTX-3090 has 24.0" in str(result.reason)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "gpt-a"}, "job.model: 'gpt-a': no such profiles; there are: gpt-neo-2.7b, opt-350m"),
        ({"tp": 3}, "job.tp: 3: no such profiles of opt-350m on GH-96 at micro-batch 4; there are: 1, 2, 4"),
        (
            {"micro_batch": 3},
            "job.micro_batch: 3: no such profiles of opt-350m on GH-96; there are: 1, 2, 4, 8",
        ),
        (
            {"model": "gpt-neo-2.7b"},
            "job.layer_profiles.times: 'RTX-3090': no such profiles of gpt-neo-2.7b; ",
        ),
        ({"partitions": 4}, "job.layer_profiles.layers_per_stage: [10, 10, 6]: one number per stage: 4"),
        ({"mfu": 0.4}, "job.mfu: 0.4: leave it out with layer_profiles"),
        ({"recompute": True}, "job.recompute: 'full': layer_profiles have no recomputation"),
        ({"layer_profiles": {"times": str(TIMES)}}, "job.layer_profiles.times: '"),
        (
            {"layer_profiles": {"layers_per_stage": [10, 10, 7]}},
            "job.layer_profiles.layers_per_stage: [10, 10, 7]",
        ),
        ({"layer_profiles": {"times": {"m": 3}}}, "job.layer_profiles.times.m: 3: must be an object"),
    ],
)
def test_what_does_not_fit_the_profile_is_refused_at_its_field(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        plan(parse(PlanRequest, request(**change)))
    assert str(caught.value).startswith(message)


def test_gpus_of_one_name_in_the_profile_are_of_one_type() -> None:
    document = request()
    document["datacenters"][1]["profiled_gpu"] = "GH-96"
    with pytest.raises(InputError, match=r"datacenters\[1\].profiled_gpu: 'GH-96': needs the same gpu_type"):
        parse(PlanRequest, document)
    document = request()
    del document["job"]["layer_profiles"]
    document["job"]["model"] = "gpt-a"
    with pytest.raises(InputError, match=r"profiled_gpu: 'GH-96': leave it out without job.layer_profiles"):
        parse(PlanRequest, document)


@pytest.mark.parametrize("seed", range(30))
def test_the_cut_has_the_least_slowest_stage(seed: int) -> None:
    draw = random.Random(seed)
    layers, stages = draw.randint(1, 9), draw.randint(1, 5)
    seconds = tuple((draw.choice((0.0, draw.random())), draw.random(), 0.0) for _ in range(layers))
    if stages > layers:
        with pytest.raises(InputError, match="at most one per layer"):
            layers_of_stages(seconds, stages, None)
        return

    def slowest(cut: list[range]) -> float:
        return max(sum(seconds[n][0] + seconds[n][1] for n in part) for part in cut)

    every = [
        [range(a, b) for a, b in itertools.pairwise((0, *inner, layers))]
        for inner in itertools.combinations(range(1, layers), stages - 1)
    ]
    cut = layers_of_stages(seconds, stages, None)
    assert cut in every
    assert slowest(cut) == pytest.approx(min(map(slowest, every)), rel=1e-6)


def run(command: Any, document: Any, tmp_path: Path, *options: str) -> Any:
    file = tmp_path / "document.json"
    file.write_text(json.dumps(document))
    result = CliRunner().invoke(command.command, [str(file), "--json", *options], catch_exceptions=False)
    return json.loads(result.stdout)


def test_commands_read_the_table_from_a_file(tmp_path: Path) -> None:
    times = {
        "layer_profiles": str(TIMES),
        "model": MODEL,
        "gpu": GPUS,
        "micro_batch": MICRO_BATCH,
        "tp": TP,
        "layers_per_stage": [10, 10, 6],
    }
    scenario = {"stages": 3, "microbatches": M, "policy": "1f1b", "times": times}
    plain = {
        **scenario,
        "times": {"forward": [1e3 * s for s in sums(0)], "backward": [1e3 * s for s in sums(1)]},
    }
    expected = simulate(parse(Scenario, plain)).makespan
    assert run(simulate_command, scenario, tmp_path)["makespan"] == pytest.approx(expected)
    compared = run(simulate_command, scenario, tmp_path, "--compare", "1f1b,gpipe")["results"]
    assert compared[0]["makespan"] == pytest.approx(expected)
    swept = {
        "scenario": {name: value for name, value in scenario.items() if name != "policy"},
        "parameter": "microbatches",
        "values": [M],
        "policies": ["1f1b"],
    }
    assert run(sweep_command, swept, tmp_path)["rows"][0]["makespan"] == pytest.approx(expected)
    profiled = run(profile_command, {**times, "stages": 3}, tmp_path)
    assert profiled["device"] == "GH-96, RTX-3090"
    for which, kind in enumerate(("forward", "backward", "update")):
        of_kind = [row[f"{kind}_ms"] for row in profiled["rows"]]
        assert of_kind == pytest.approx([1e3 * s for s in sums(which)])
    assert times_of_profile(profiled)["backward"] == pytest.approx([1e3 * s for s in sums(1)])
    document = request(layer_profiles={"times": str(TIMES), "sizes": str(SIZES)})
    best = run(plan_command, document, tmp_path)["options"][0]
    assert best["iteration_ms"] == plan(parse(PlanRequest, request())).options[0].iteration_ms


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"gpu": "V100"}, "times.gpu: 'V100': no such profiles of opt-350m; there are: GH-96, RTX-2080"),
        ({"gpu": GPUS[:2]}, r"times.gpu: ['GH-96', 'GH-96']: one, or one per stage: 3"),
        ({"layers_per_stage": [20, 6]}, "times.layers_per_stage: [20, 6]: one number per stage: 3"),
        ({"layers_per_stage": None}, "times.layers_per_stage: required if each stage has a gpu"),
        ({"layer_profiles": "no such file"}, "FILE: 'no such file': cannot be read"),
    ],
)
def test_a_scenario_names_what_the_profile_lacks(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    times = {"layer_profiles": str(TIMES), "model": MODEL, "gpu": GPUS, "layers_per_stage": [10, 10, 6]}
    scenario = {"stages": 3, "microbatches": M, "policy": "1f1b", "times": {**times, **change}}
    with pytest.raises(InputError) as caught:
        run(simulate_command, scenario, tmp_path)
    assert str(caught.value).startswith(message)
