"""`meridian prefill replay`: fields of the contract, placements that hold, bars, errors that name a field."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.commands.prefill import replay_command
from engine.errors import InputError
from engine.inputs import parse
from engine.prefill.bubbles import TrainingPattern
from engine.prefill.replay import ReplayResult, replay
from engine.prefill.request import Bubbles, ReplayRequest
from engine.prefill.trace import read_trace
from engine.schedule.scenario import Scenario
from engine.simulate import simulate
from tests.engine.prefill_checker import faults

TESTBED = {
    "stages": 4,
    "dc_of_stage": [0, 0, 1, 2],
    "pipelines": 3,
    "microbatches": 4,
    "times": {"forward": 1, "recompute": 1, "backward": 2},
    "wan": {"transfer": 3},
    "policy": "atlas",
}
LLAMA = {"a_ms": 4.0, "b_ms": 0.0656, "c_ms": 1.83e-6}
POINTS = [[512, 35], [1024, 77], [2048, 152], [4096, 304], [8192, 665], [16384, 1570]]
QUANTILES = {"p50", "p95", "p99", "max"}


def document(**changes: Any) -> dict[str, Any]:
    return {
        "bubbles": {"scenario": TESTBED, "slot_ms": 17.9},
        "profile": LLAMA,
        "trace": "azure-code",
        "load": 150,
        "requests": 300,
        "controller": {"guard_ms": 1, "queue": 64, "chunk_tokens": 128},
        **changes,
    }


def run(data: dict[str, Any], *options: str) -> Any:
    return CliRunner().invoke(replay_command, ["-", *options], input=json.dumps(data), catch_exceptions=False)


def replayed(data: dict[str, Any]) -> tuple[ReplayResult, list[dict[str, Any]]]:
    lines: list[dict[str, Any]] = []
    result = replay(parse(ReplayRequest, data), lines.append)
    assert isinstance(result, ReplayResult)
    return result, lines


def test_the_fields_of_the_contract(tmp_path: Path) -> None:
    path = tmp_path / "placements.jsonl"
    answer = json.loads(run(document(), "--json", "--placements", str(path)).stdout)
    assert set(answer["refused"]) == {"no_bubble", "too_long", "queue_full", "kv_space", "ttft"}
    assert answer["requests"] == 300 == answer["accepted"] + sum(answer["refused"].values())
    assert set(answer["queue_ms"]) == set(answer["ttft_ms"]) == QUANTILES
    assert set(answer["search_us"]) == {"p50", "p99", "max"}
    simulated = simulate(parse(Scenario, TESTBED)).as_dict()
    assert answer["utilization_before"] == pytest.approx(simulated["utilization"], rel=1e-12)
    assert answer["load"] == 150
    assert answer["ttft_missed"] == 0
    assert answer["training_slowdown"] == 0
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == answer["accepted"]
    assert set(lines[0]) == {
        "request",
        "tokens",
        "arrival_ms",
        "start_ms",
        "end_ms",
        "kv_done_ms",
        "intervals",
    }
    assert set(lines[0]["intervals"][0]) == {"cell", "pipeline", "stage", "start_ms", "end_ms", "tokens"}
    for line in lines:
        assert line["kv_done_ms"] - line["end_ms"] == pytest.approx(line["tokens"] * 131_072 / 12.5e6)
    assert max(line["start_ms"] - line["arrival_ms"] for line in lines) == answer["queue_ms"]["max"]
    assert max(line["kv_done_ms"] - line["arrival_ms"] for line in lines) == answer["ttft_ms"]["max"]


def test_the_table_says_load_and_share() -> None:
    shown = run(document()).stdout
    assert "150 × the trace" in shown
    assert "45.5 % without prefill" in shown


@settings(max_examples=20, deadline=None)
@given(
    stages=st.integers(1, 4),
    pipelines=st.integers(1, 3),
    cells=st.sampled_from([1, 2, 4]),
    degree=st.sampled_from([1, 2, 4]),
    phase=st.sampled_from(["in", "out"]),
    load=st.sampled_from([5, 100, 1000]),
    guard=st.sampled_from([0, 1, 4]),
    queue=st.sampled_from([0, 3, 20]),
    reserve_ms=st.sampled_from([0.0, 500.0]),
    chunk=st.sampled_from([None, 64, 300]),
    order=st.sampled_from(["fifo", "longest_fit"]),
    slo=st.sampled_from([None, 300, 2000]),
    budget=st.sampled_from([None, 0.5]),
)
def test_every_placement_holds(
    stages: int,
    pipelines: int,
    cells: int,
    degree: int,
    phase: str,
    load: float,
    guard: float,
    queue: int,
    reserve_ms: float,
    chunk: int | None,
    order: str,
    slo: float | None,
    budget: float | None,
) -> None:
    scenario = {
        **TESTBED,
        "stages": stages,
        "dc_of_stage": [stage // 2 for stage in range(stages)],
        "pipelines": pipelines,
    }
    controller = {
        "guard_ms": guard,
        "queue": queue,
        "reserve_ms": reserve_ms,
        "chunk_tokens": chunk,
        "order": order,
        "ttft_slo_ms": slo,
        "kv_budget_gb": budget,
    }
    data = document(
        bubbles={"scenario": scenario, "slot_ms": 17.9},
        cells=cells,
        pp_degree=min(cells, degree),
        phase=phase,
        load=load,
        requests=120,
        controller=controller,
    )
    result, lines = replayed(data)
    assert faults(data, lines) == []
    assert len(lines) == result.accepted
    assert result.training_slowdown == 0
    assert result.ttft_missed == 0
    if slo is not None:
        assert all(line["kv_done_ms"] - line["arrival_ms"] <= slo + 1e-6 for line in lines)
    if order == "fifo":
        starts = [line["start_ms"] for line in sorted(lines, key=lambda line: line["request"])]
        assert starts == sorted(starts)


def test_the_checker_sees_what_is_wrong() -> None:
    data = document()
    _, lines = replayed(data)
    first = lines[0]["intervals"][0]
    moved = json.loads(json.dumps(lines))
    moved[0]["intervals"][0]["end_ms"] += 30
    assert any("tokens in" in fault for fault in faults(data, moved))
    assert any("bubble" in fault or "at once" in fault for fault in faults(data, [*moved, *lines[1:]]))
    twice = [*lines, {**lines[0], "intervals": [first]}]
    assert any("two at once" in fault for fault in faults(data, twice))
    assert any("add up" in fault for fault in faults(data, twice)) == (len(lines[0]["intervals"]) > 1)


def test_placed_intervals_make_the_utilization() -> None:
    """By hand: prefill time inside the window over GPU time, on top of what training uses."""
    result, lines = replayed(document())
    first, last = result.window_start_ms, result.window_start_ms + result.window_ms
    inside = sum(
        max(0.0, min(i["end_ms"], last) - max(i["start_ms"], first))
        for line in lines
        for i in line["intervals"]
    )
    expected = result.utilization_before + inside / (12 * result.window_ms)
    assert result.utilization_after == pytest.approx(expected)


def test_twelve_gpus_are_filled() -> None:
    """45 % without prefill; the bar is 94 % (85 % with an objective of 2 s), with demand at all times."""
    data = document(profile={"points": POINTS}, load=200, requests=4000)
    assert replayed(data)[0].utilization_after > 0.97
    data["controller"] = {**data["controller"], "ttft_slo_ms": 2000}
    result, lines = replayed(data)
    assert result.utilization_after > 0.97
    assert result.refused["ttft"] > 0
    assert max(line["kv_done_ms"] - line["arrival_ms"] for line in lines) <= 2000


def test_half_the_supply_is_accepted(tmp_path: Path) -> None:
    """The trace's lengths, arriving evenly: the queue of 64 is not even needed in full."""
    path = tmp_path / "even.csv"
    lengths = (line["tokens"] for line in _trace_lines(1500))
    rows = [f"{i * 0.0475},{tokens},1" for i, tokens in enumerate(lengths)]
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows))
    result, _ = replayed(document(trace=str(path), load=1, requests=None, profile={"points": POINTS}))
    assert result.offered_share is not None
    assert 0.45 < result.offered_share < 0.55
    assert result.accepted / result.requests >= 0.95


def _trace_lines(count: int) -> list[dict[str, int]]:
    return [{"tokens": int(tokens)} for tokens in read_trace("azure-code").tokens[:count]]


def test_cells_out_of_phase_hardly_wait() -> None:
    data = document(
        bubbles={"scenario": {**TESTBED, "pipelines": 5, "wan": {"transfer": 5}}, "slot_ms": 17.9},
        cells=50,
        phase="out",
        load=792,
        requests=None,
        profile={"points": POINTS},
    )
    result, _ = replayed(data)
    assert result.offered_share is not None
    assert result.offered_share >= 0.5
    assert result.queue_ms.p95 is not None
    assert result.queue_ms.p95 <= 8


def test_a_recorded_timeline_is_as_good_as_its_scenario(tmp_path: Path) -> None:
    answer = simulate(parse(Scenario, TESTBED)).as_dict()
    printed = tmp_path / "simulated.json"
    printed.write_text(json.dumps(answer))
    recorded = tmp_path / "spans.jsonl"
    seconds = [
        {**span, "start": 7 + span["start"] * 0.0179, "end": 7 + span["end"] * 0.0179}
        for span in answer["spans"]
        if span["track"] == "gpu"
    ]
    recorded.write_text("\n".join(json.dumps(span) for span in seconds))
    expected, _ = replayed(document())
    for bubbles in ({"timeline": str(printed), "slot_ms": 17.9}, {"timeline": str(recorded)}):
        result, _ = replayed(document(bubbles=bubbles))
        assert result.utilization_after == pytest.approx(expected.utilization_after)
        assert result.accepted == expected.accepted


def test_the_times_themselves_give_what_their_scenario_gives() -> None:
    expected, _ = replayed(document())
    pattern = parse(ReplayRequest, document()).bubbles.pattern()
    assert isinstance(pattern, TrainingPattern)
    bubbles = Bubbles.of(pattern).model_dump(mode="json", exclude_none=True)
    assert replayed(document(bubbles=bubbles))[0].ttft_ms == expected.ttft_ms


def test_mooncake_and_too_long() -> None:
    data = document(trace="mooncake-conversation", load=1, requests=200)
    data["controller"] = {
        "guard_ms": 1,
        "queue": 64,
    }  # whole: what is longer than the longest bubble cannot run
    dropped, lines = replayed(data)
    assert dropped.refused["too_long"] > 0
    assert faults(data, lines) == []
    clipped, lines = replayed({**data, "too_long": "clip"})
    assert clipped.refused["too_long"] == 0
    assert clipped.accepted > dropped.accepted
    assert faults(data, lines) == []


def test_infeasible_schedules_are_an_answer() -> None:
    scenario = {**TESTBED, "policy": "gpipe", "memory_limit": 1}
    answer = json.loads(run(document(bubbles={"scenario": scenario, "slot_ms": 1}), "--json").stdout)
    assert answer["feasible"] is False
    assert answer["reason"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"bubbles": {}}, "bubbles"),
        ({"bubbles": {"scenario": TESTBED}}, "bubbles.slot_ms"),
        ({"bubbles": {"scenario": {**TESTBED, "stages": 0}, "slot_ms": 1}}, "bubbles.scenario.stages"),
        ({"bubbles": {"timeline": "/nowhere"}}, "bubbles.timeline"),
        ({"bubbles": {"busy": [[[[0, 1]]]]}}, "bubbles.period_ms"),
        ({"bubbles": {"period_ms": 9}}, "bubbles"),
        ({"bubbles": {"busy": [], "period_ms": 9}}, "bubbles.busy"),
        ({"bubbles": {"busy": [[]], "period_ms": 9}}, "bubbles.busy[0]"),
        ({"bubbles": {"busy": [[[]], [[], []]], "period_ms": 9}}, "bubbles.busy[1]"),
        ({"bubbles": {"busy": [[[[0, 2], [1, 3]]]], "period_ms": 9}}, "bubbles.busy[0][0]"),
        ({"bubbles": {"busy": [[[[8, 10]]]], "period_ms": 9}}, "bubbles.busy[0][0]"),
        ({"profile": {}}, "profile"),
        ({"profile": {"a_ms": 1}}, "profile.b_ms"),
        ({"profile": {"points": [[1, 1], [2, 2]]}}, "profile.points"),
        ({"profile": {"points": [[1, 1], [2, -2], [3, 3]]}}, "profile.points[1]"),
        ({"profile": {"model": "llama-3-8b", "gpu": "abacus"}}, "profile.gpu"),
        ({"cells": 3, "pp_degree": 2}, "pp_degree"),
        ({"phase": "sideways"}, "phase"),
        ({"load": 0}, "load"),
        ({"load": float("nan")}, "load"),
        ({"requests": 0}, "requests"),
        ({"trace": "/nowhere.csv"}, "trace"),
        ({"too_long": "cut"}, "too_long"),
        ({"controller": {"order": "lifo"}}, "controller.order"),
        ({"controller": {"queue": -1}}, "controller.queue"),
        ({"controller": {"chunk_tokens": 0}}, "controller.chunk_tokens"),
        ({"controller": {"gard_ms": 1}}, "controller.gard_ms"),
        ({"cells": 9000, "bubbles": {"scenario": TESTBED, "slot_ms": 1}}, "cells"),
    ],
)
def test_bad_input_names_the_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as error:
        run(document(**changes))
    assert error.value.field == field


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "trace"),
        ("TIMESTAMP,ContextTokens\n", "trace"),
        ("when,tokens\n1,2\n", "trace"),
        ("TIMESTAMP,ContextTokens\nnoon,5\n", "trace[0].TIMESTAMP"),
        ("TIMESTAMP,ContextTokens\n1,5\n2,many\n", "trace[1].ContextTokens"),
        ("TIMESTAMP,ContextTokens\n1,0\n", "trace[0].ContextTokens"),
        ("TIMESTAMP,ContextTokens\n1\n", "trace[0].ContextTokens"),
        ("Timestamp,Request tokens\nnever,5\n", "trace[0].Timestamp"),
        ("Timestamp,Model,Request tokens\n1,m,0\n", "trace[0].Request tokens"),
        ('{"timestamp": 0, "input_length": 5}\n{"timestamp": 1\n', "trace[1]"),
        ('{"timestamp": NaN, "input_length": 5}\n', "trace[0].timestamp"),
        ('{"timestamp": 0}\n', "trace[0].input_length"),
    ],
)
def test_bad_traces_name_the_row(text: str, field: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        run(document(trace=str(path)))
    assert error.value.field == field


def test_burstgpt_traces_are_read(tmp_path: Path) -> None:
    path = tmp_path / "burst.csv"
    path.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,ChatGPT,1087,230,1317,Conversation log\n"
        "118.5,GPT-4,417,276,693,API log\n"
    )
    trace = read_trace(str(path))
    assert trace.arrival_ms.tolist() == [0, 40_000, 113_500]
    assert trace.tokens.tolist() == [472, 1087, 417]


def test_placements_that_cannot_be_written() -> None:
    with pytest.raises(InputError, match="--placements"):
        run(document(), "--placements", "/nowhere/placements.jsonl")
