"""`meridian predict`: Sailor's measured runs, and, by independent arithmetic, what any profile gives."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.commands.predict import command
from engine.errors import InputError
from engine.model.layer_profiles import LayerProfiles, LayerSizes, read_profiles, read_sizes
from engine.plan.layouts.layout import Layout, read_runs
from engine.plan.layouts.predict import Network, Tables, predict, read_bandwidths, shipped
from engine.reproduce import sailor

DATA = Path(__file__).parents[2] / "engine/data/sailor"
LAYERS = 6
GPUS = ("fast", "slow")
SIZE = {"params_floats": 1000, "act_output_bytes": 64, "act_mem_bytes": 500}


def profiles(seconds: Any) -> LayerProfiles:
    """A model of six layers on two GPUs at micro-batches 1, 2 and tp 1, 2; `seconds` of (gpu, tp, layer)."""
    return read_profiles(
        {
            "toy": {
                gpu: {
                    str(b): {
                        str(tp): {str(layer): seconds(gpu, tp, layer) for layer in range(LAYERS)}
                        for tp in (1, 2)
                    }
                    for b in (1, 2)
                }
                for gpu in GPUS
            }
        }
    )


def sizes() -> LayerSizes:
    layers = {str(layer): SIZE for layer in range(LAYERS)}
    halves = {str(layer): {**SIZE, "params_floats": 500, "act_mem_bytes": 300} for layer in range(LAYERS)}
    return read_sizes({"toy": {"1": layers, "2": halves}})


def tables(seconds: Any, between: float = 1e3) -> Tables:
    network = Network(inside_nodes={gpu: {2: 4e3, 4: 8e3} for gpu in GPUS}, between_nodes=between)
    return Tables(profiles=profiles(seconds), sizes=sizes(), network=network)


def even(gpu: str, tp: int, layer: int) -> list[float]:
    return [0.01, 0.02, 0.004]


def layout(
    stages: Sequence[Sequence[int]], replicas: Sequence[Sequence[Any]], gbs: int, mbs: int = 1
) -> Layout:
    """A layout of the toy: the layers of each stage, and each stage's replicas as (gpu, GPUs, tp)."""
    run = {
        "model": "toy",
        "mbs": mbs,
        "gbs": gbs,
        "pipeline_list": [
            {
                "layers_per_stage": stages,
                "tmp_per_stage": [
                    [[[[gpu, gpus, "a"]], tp] for gpu, gpus, tp in stage] for stage in replicas
                ],
            }
        ],
    }
    return read_runs(run)[0].layout()


def one_f_one_b(forward: Sequence[float], backward: Sequence[float], hops: Sequence[float], m: int) -> float:
    """The makespan of 1F1B as the longest path: each op after the one before it on its stage, and after the
    one whose result it needs. A hop carries one transfer at a time in each direction.
    """
    last = len(forward) - 1
    ends: dict[tuple[str, int, int], float] = {}
    orders = []
    for stage in range(last + 1):
        warm = min(last - stage, m)
        order = [("F", i) for i in range(warm)]
        for i in range(m - warm):
            order += [("F", warm + i), ("B", i)]
        orders.append(order + [("B", i) for i in range(m - warm, m)])
    clock, done = [0.0] * (last + 1), [0] * (last + 1)
    free: dict[tuple[str, int], float] = {}
    while any(done[s] < len(orders[s]) for s in range(last + 1)):
        for s in range(last + 1):
            while done[s] < len(orders[s]):
                kind, i = orders[s][done[s]]
                source = (kind, s - 1, i) if kind == "F" else (kind, s + 1, i)
                if (kind == "F" and s == 0) or (kind == "B" and s == last):
                    ready = 0.0
                elif source in ends:
                    hop = (kind, min(s, source[1]))
                    ready = max(ends[source], free.get(hop, 0.0)) + hops[hop[1]]
                    free[hop] = ready
                else:
                    break
                clock[s] = max(clock[s], ready) + (forward if kind == "F" else backward)[s]
                ends[kind, s, i] = clock[s]
                done[s] += 1
    return max(clock)


def test_the_15_measured_runs_are_met_by_the_shipped_profiles() -> None:
    runs = read_runs(json.loads((DATA / "measured_iterations.json").read_text()))
    assert len(runs) == 15
    predicted = [predict(run.layout(), shipped()) for run in runs]
    times = [
        abs(one.iteration_s / run.real - 1) for one, run in zip(predicted, runs, strict=True) if run.real
    ]
    memory = [
        abs(max(one.memory_bytes) / run.max_mem - 1)
        for one, run in zip(predicted, runs, strict=True)
        if run.max_mem
    ]
    assert len(times) == len(memory) == 15
    assert sum(times) / 15 < 0.12
    assert max(times) < 0.30
    assert sum(memory) / 15 < 0.10


def test_reproduce_has_a_row_for_the_time_and_the_memory_of_each_run() -> None:
    outcomes = [experiment.run() for experiment in sailor.EXPERIMENTS]
    assert [len(outcome.rows) for outcome in outcomes] == [16, 16]
    rows = [row for outcome in outcomes for row in outcome.rows]
    assert len({row.name for row in rows}) == 32
    assert [row.status for row in rows if row.ok] == ["met"] * 32


@pytest.mark.parametrize(("stages", "m"), [(1, 5), (2, 4), (3, 8), (6, 7)])
def test_equal_stages_take_the_closed_form_of_1f1b(stages: int, m: int) -> None:
    each = LAYERS // stages
    cut = [list(range(s * each, (s + 1) * each)) for s in range(stages)]
    one = predict(layout(cut, [[("fast", 1, 1)]] * stages, gbs=m), tables(even, between=1e30))
    assert one.pipelines_s == pytest.approx((m + stages - 1) * each * 0.03)
    assert one.allreduce_s == 0
    assert one.update_s == pytest.approx(each * 0.004)
    held = [1000 * each * 24 + min(m, stages - s) * 500 * each + 5.06e9 for s in range(stages)]
    assert one.memory_bytes == pytest.approx(held)


@pytest.mark.parametrize("seed", range(20))
def test_uneven_stages_on_mixed_gpus_take_the_longest_path_of_the_slowest_pipeline(seed: int) -> None:
    draw = random.Random(seed)
    seconds = {
        (gpu, tp, n): [draw.uniform(0.01, 0.1) for _ in range(3)]
        for gpu in GPUS
        for tp in (1, 2)
        for n in range(LAYERS)
    }
    cuts = [0, *sorted(draw.sample(range(1, LAYERS), 2)), LAYERS]
    stages = [list(range(a, b)) for a, b in pairwise(cuts)]
    replicas = [[(draw.choice(GPUS), 2, draw.choice((1, 2))) for _ in range(3)] for _ in stages]
    given = tables(lambda *key: seconds[key], between=1e4)
    one = predict(layout(stages, replicas, gbs=30, mbs=2), given)
    pipelines = [
        one_f_one_b(
            [
                sum(seconds[gpu, tp, n][0] for n in layers)
                for layers, (gpu, _, tp) in zip(stages, path, strict=True)
            ],
            [
                sum(seconds[gpu, tp, n][1] for n in layers)
                for layers, (gpu, _, tp) in zip(stages, path, strict=True)
            ],
            [2 * 64 / 1e4] * 2,
            5,
        )
        for path in zip(*replicas, strict=True)
    ]
    assert one.pipelines_s == pytest.approx(max(pipelines))
    ends = []
    for layers, stage in zip(stages, replicas, strict=True):
        update = max(sum(seconds[gpu, tp, n][2] for n in layers) for gpu, _, tp in stage)
        sent = 4 * len(layers) * (1000 if any(tp == 1 for _, _, tp in stage) else 500)
        together = 2 if all(tp == 1 for _, _, tp in stage) else 1
        nodes = 2 if together == 2 else 3
        inside = 2 * (together - 1) / together * sent / 4e3
        ends.append(inside + 2 * (nodes - 1) / nodes * sent / together / 1e4 + update)
    assert one.allreduce_s + one.update_s == pytest.approx(max(ends))
    order = draw.sample(range(3), 3)
    moved = [[stage[i] for i in order] for stage in replicas]
    assert predict(layout(stages, moved, gbs=30, mbs=2), given) == one


def test_doubling_every_time_doubles_what_is_computed_and_nothing_else() -> None:
    cut, replicas = [[0, 1], [2, 3, 4, 5]], [[("fast", 4, 2)] * 4, [("slow", 4, 2)] * 4]
    given = tables(even, between=1e30)
    one = predict(layout(cut, replicas, gbs=16), given)
    twice = predict(
        layout(cut, replicas, gbs=16), tables(lambda *key: [2 * s for s in even(*key)], between=1e30)
    )
    assert twice.pipelines_s == pytest.approx(2 * one.pipelines_s)
    assert twice.update_s == pytest.approx(2 * one.update_s)
    assert twice.allreduce_s == one.allreduce_s > 0
    assert twice.memory_bytes == one.memory_bytes


def test_pipelines_of_two_groups_share_the_batch_and_sum_their_gradients() -> None:
    whole, halves = [list(range(LAYERS))], [[0, 1, 2], [3, 4, 5]]
    run = {
        "model": "toy",
        "mbs": 1,
        "gbs": 8,
        "pipeline_list": [
            {"layers_per_stage": whole, "tmp_per_stage": [[[[["fast", 1, "a"]], 1]]]},
            {"layers_per_stage": halves, "tmp_per_stage": [[[[["fast", 1, "a"]], 1]]] * 2},
        ],
    }
    one = predict(read_runs(run)[0].layout(), tables(even, between=1e6))
    assert one.pipelines_s == pytest.approx(max(4 * 0.18, one_f_one_b([0.03] * 2, [0.06] * 2, [64e-6], 4)))
    assert one.allreduce_s == pytest.approx(4 * 6000 / 1e6)  # 2·(2 − 1)/2 of the gradients of all layers
    assert len(one.memory_bytes) == 3


def test_another_shipped_model_needs_no_change() -> None:
    run = {
        "model": "gpt-neo-2.7b",
        "mbs": 1,
        "gbs": 16,
        "pipeline_list": [
            {
                "layers_per_stage": [list(range(17)), list(range(17, 34))],
                "tmp_per_stage": [[[[["GH-96", 4, "a"]], 4]], [[[["GH-96", 4, "a"]], 2]]],
            }
        ],
    }
    one = predict(read_runs(run)[0].layout(), shipped())
    rows = json.loads((DATA / "layer_profiles.json").read_text())["gpt-neo-2.7b"]["GH-96"]["1"]
    times = [
        [sum(rows[tp][str(n)][i] for n in layers) for layers, tp in ((range(17), "4"), (range(17, 34), "2"))]
        for i in range(2)
    ]
    output = 20971520 / 22.9e9
    assert one.pipelines_s == pytest.approx(one_f_one_b(*times, [output], 16))


def test_the_example_of_the_page_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = DATA.parents[2]
    monkeypatch.chdir(root)
    (code,) = re.findall("```python\n(.*?)```", (root / "docs/predict.md").read_text(), re.DOTALL)
    exec(compile(code, "docs/predict.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    runs = read_runs(json.loads((DATA / "measured_iterations.json").read_text()))
    assert [float(line.split()[1]) for line in printed] == [
        predict(run.layout(), shipped()).iteration_s for run in runs
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "opt-350"}, "model: 'opt-350': no such profiles; there are: toy"),
        ({"mbs": 4}, "micro_batch: 4: no such profiles of toy on fast; there are: 1, 2"),
        ({"gpu": "H100"}, "gpu: 'H100': no such profiles of toy; there are: fast, slow"),
        ({"tp": 4}, "tp: 4: no such profiles of toy on fast at micro-batch 1; there are: 1, 2"),
        ({"layers": 5}, "layers_per_stage: 4: toy has layers 0 to 5; the layout ends with 4"),
        ({"layers": 7}, "layers_per_stage: 6: toy has layers 0 to 5; the layout ends with 6"),
        ({"gbs": 7}, "gbs: 7: must be a multiple of mbs × pipelines = 1 × 2"),
        (
            {"GPUs": 1, "tp": 2},
            "pipeline_list[0].tmp_per_stage[0][0]: [[['fast', 1, 'a']], 2]: 2 ranks of tp",
        ),
    ],
)
def test_what_a_profile_lacks_is_named_with_what_it_has(change: dict[str, Any], message: str) -> None:
    replica = [[[change.get("gpu", "fast"), change.get("GPUs", 4), "a"]], change.get("tp", 1)]
    run = {
        "model": change.get("model", "toy"),
        "mbs": change.get("mbs", 1),
        "gbs": change.get("gbs", 16),
        "pipeline_list": [
            {
                "layers_per_stage": [list(range(change.get("layers", LAYERS)))],
                "tmp_per_stage": [[replica, replica]],
            }
        ],
    }
    with pytest.raises(InputError) as caught:
        predict(read_runs(run)[0].layout(), tables(even))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"m": {"g": {"1": {"1": {"0": [1, 2]}}}}}, "m.g.1.1.0: [1, 2]: must be [forward, backward, update]"),
        ({"m": {"g": {"1": {"1": {"1": [1, 2, 3]}}}}}, "m.g.1.1: [1]: must have layers 0 to 0"),
        ({"m": {"g": {"one": {}}}}, "m.g.one: 'one': must be named by a whole number"),
        ({"m": {"g": {"1": {"1": {"0": [1, 2, -3]}}}}}, "m.g.1.1.0[2]: -3: must be a number, at least 0"),
        ({}, "{}: must be an object that is not empty"),
    ],
)
def test_a_malformed_table_is_refused_at_its_place(table: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_profiles(table)
    assert str(caught.value).startswith(message)


def test_bandwidths_are_those_of_the_smallest_group_that_holds_the_gpus() -> None:
    network = Network(inside_nodes=read_bandwidths({"g": {"2": [[0, 1, 2], 5.0], "4": [[0, 1, 2], 7.0]}}))
    assert [network.inside("g", n) for n in (2, 3, 4, 8)] == [5, 7, 7, 7]
    with pytest.raises(InputError, match="no bandwidth inside a node; there are: g"):
        network.inside("h", 2)


def test_the_command_predicts_a_strangers_files(tmp_path: Path) -> None:
    runs = json.loads((DATA / "measured_iterations.json").read_text())[5:7]
    files = {
        name: json.loads((DATA / f"{name}.json").read_text()) for name in ("layer_profiles", "layer_sizes")
    }
    for table in files.values():  # another name, and of one GPU type alone
        table["other"] = table.pop("opt-350m")
    files["layer_profiles"]["other"] = {"GH-96": files["layer_profiles"]["other"]["GH-96"]}
    for run in runs:
        run["model"] = "other"
    arguments = [str(tmp_path / "runs.json"), "--json"]
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    for name, table in files.items():
        (tmp_path / name).write_text(json.dumps(table))
        arguments += ["--" + name.replace("_", "-"), str(tmp_path / name)]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    answer = json.loads(result.stdout)
    same = [predict(replace(run.layout(), model="opt-350m"), shipped()) for run in read_runs(runs)]
    assert [run["iteration_s"] for run in answer["runs"]] == [one.iteration_s for one in same]
    assert [run["memory_bytes"] for run in answer["runs"]] == [max(one.memory_bytes) for one in same]
    assert answer["runs"][0]["measured_s"] == runs[0]["real"]
    assert answer["time"]["worst"] == max(abs(run["deviation"]) for run in answer["runs"])
    table_of = CliRunner().invoke(command, [arguments[0], *arguments[2:]], catch_exceptions=False).output
    assert "time: mean deviation" in table_of
    runs[1]["mbs"] = 3
    (tmp_path / "runs.json").write_text(json.dumps(runs))
    with pytest.raises(InputError, match=r"^\[1\]\.gbs: 32: must be a multiple"):
        CliRunner().invoke(command, arguments, catch_exceptions=False)
