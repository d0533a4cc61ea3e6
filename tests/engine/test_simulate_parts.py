"""Timing of schedules written by hand, deadlock, bounds by hand, the trace, and the command."""

import json

import pytest
from click.testing import CliRunner

from engine.cli import cli
from engine.errors import InputError
from engine.inputs import parse
from engine.schedule import Frame, Scenario, Schedule, Traversal, build
from engine.schedule.text import parse_schedule
from engine.simulate import DeadlockError, Span, lower_bound, simulate, time_schedule
from engine.simulate.trace import chrome_trace
from tests.engine import fig6

FIG6 = {**fig6.FIG6, "memory_limit": 4, "full_limit": 1}

TINY = {
    "stages": 2,
    "dc_of_stage": [0, 1],
    "microbatches": 2,
    "times": {"forward": 1, "backward": 2},
    "wan": {"latency": 3, "transfer": 1},
    "policy": "varuna",
}


def schedule_of(*rows: str) -> Schedule:
    return parse_schedule(
        "\n".join(["microbatches 2, chunks 1, traversal straight, sharing spatial, gate none", *rows])
    )


def test_times_by_hand() -> None:
    timeline = time_schedule(parse(Scenario, TINY), schedule_of("P0 S0: F0 F1 B0 B1", "P0 S1: F0 B0 F1 B1"))
    # F0 0-1, sent 1-2, there at 5: F0 5-6, B0 6-8, sent 8-9, back at 12; F1 8-9, B1 9-11, sent 11-12, back at
    # 15.
    assert timeline.op_start[0].tolist() == [[0, 1, 12, 15], [5, 6, 8, 9]]
    assert timeline.op_end[0].tolist() == [[1, 2, 14, 17], [6, 8, 9, 11]]
    assert timeline.transfer_start[:, 0, 0].tolist() == [[1, 2], [8, 11]]
    assert timeline.makespan == 17


def test_split_backward_sends_before_its_weight_part() -> None:
    split = {**TINY, "times": {"forward": 1, "backward": 2, "weight": 5}}
    rows = ("P0 S0: F0 F1 B0 B1 W0 W1", "P0 S1: F0 B0 F1 B1 W0 W1")
    timeline = time_schedule(parse(Scenario, split), schedule_of(*rows))
    assert timeline.op_end[0].tolist() == [[1, 2, 14, 17, 22, 27], [6, 8, 9, 11, 16, 21]]
    assert timeline.peak_in_flight().tolist() == [[2, 2]]
    whole = time_schedule(parse(Scenario, split), schedule_of("P0 S0: F0 F1 B0 B1", "P0 S1: F0 B0 F1 B1"))
    assert whole.op_end[0, 1].tolist() == [6, 13, 14, 21]


def test_a_deadlock_is_shown_with_its_spots() -> None:
    broken = schedule_of("P0 S0: F0 B0 F1 B1", "P0 S1: F1 B1 F0 B0")
    with pytest.raises(DeadlockError) as caught:
        time_schedule(parse(Scenario, TINY), broken)
    assert "P0 S0: F0 [B0] F1" in str(caught.value)
    assert "P0 S1: [F1] B1" in str(caught.value)


def test_a_schedule_of_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="microbatches"):
        time_schedule(
            parse(Scenario, {**TINY, "microbatches": 3}), schedule_of("P0 S0: F0 B0", "P0 S1: F0 B0")
        )


@pytest.mark.parametrize(
    ("fields", "sharing", "bound"),
    [
        ({"full_limit": None}, "temporal", 33),
        ({"full_limit": None}, "spatial", 36),
        ({"full_limit": 1}, "spatial", 37),
        ({"full_limit": 1}, "temporal", 34),
        # One microbatch at a time on every stage: 4 round trips of 26, one way and back.
        ({"memory_limit": 1, "full_limit": None}, "spatial", 4 * (6 * 3 + 4 * 2)),
    ],
)
def test_bounds_of_figure_6(fields: dict, sharing: str, bound: float) -> None:
    frame = Frame(traversal=Traversal(name="straight", stages=6), sharing=sharing)
    assert lower_bound(parse(Scenario, {**FIG6, **fields}), frame) == bound


def test_the_trace_has_every_span_once() -> None:
    spans = simulate(parse(Scenario, FIG6)).spans()
    events = [event for event in chrome_trace(spans)["traceEvents"] if event["ph"] == "X"]
    assert len(events) == len(spans)
    assert sum(event["dur"] for event in events) == pytest.approx(1000 * sum(s.end - s.start for s in spans))
    tracks = {(event["pid"], event["tid"]) for event in events}
    assert len(tracks) == 2 * (6 + 2 * 2)


def test_the_trace_starts_at_zero_and_keeps_the_unit() -> None:
    span = Span(track="gpu", pipeline=0, stage=1, op="all_reduce", start=100.0, end=100.5)
    event = chrome_trace([span], unit="s")["traceEvents"][-1]
    assert (event["name"], event["ts"], event["dur"]) == ("all_reduce", 0.0, 500_000.0)
    with pytest.raises(ValueError, match="unit"):
        chrome_trace([span], unit="h")


def run(document: object, *options: str) -> str:
    result = CliRunner().invoke(cli, ["simulate", "-", *options], input=json.dumps(document))
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_the_command_prints_one_json_object(tmp_path) -> None:
    answer = json.loads(run(FIG6, "--json", "--out", str(tmp_path / "new")))
    assert answer["makespan"] == 36
    assert json.loads((tmp_path / "new/result.json").read_text()) == answer
    assert json.loads((tmp_path / "new/trace.json").read_text())["traceEvents"]


def test_the_command_draws_what_fits() -> None:
    text = run(FIG6)
    assert "makespan            36" in text
    assert "P0 S5   ·······FB0FB1FB2FB3" in text
    assert "P0 S5" not in run({**FIG6, "times": {"forward": 100, "recompute": 1, "backward": 2}})


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"policy": "atls"}, "policy"),
        ({"dc_of_stage": [0, 1]}, "dc_of_stage"),
        ({"times": {"forward": [1, 2], "backward": 1}}, "times.forward"),
        ({"times": {"forward": 0, "backward": 1}}, "times.forward"),
        ({"wan": [{"transfer": 1}]}, "wan"),
        ({"memory_limit": 0}, "memory_limit"),
        ({"jitter": -0.1}, "jitter"),
        ({"chunks": 2}, "chunks"),
        ({"traversal": "wave"}, "traversal"),
        ({"stages": 10**9, "dc_of_stage": []}, "stages"),
        ({"stages": 2000, "dc_of_stage": [], "microbatches": 10**9}, "microbatches"),
        ({"microbatches": 40_000}, "spans"),
        ({"wan": {"latency": -1}}, "wan.latency"),
        ({"lan": [{"transfer": 1}, {"transfer": 2}]}, "lan"),
    ],
)
def test_bad_input_names_its_field(change: dict, field: str) -> None:
    with pytest.raises(InputError) as caught:
        run({**FIG6, **change})
    assert caught.value.field == field


def test_infeasible_is_a_result() -> None:
    answer = json.loads(run({**FIG6, "policy": "gpipe", "memory_limit": 3}, "--json"))
    assert answer["feasible"] is False
    assert answer["makespan"] is None
    assert answer["spans"] == []
    assert build(parse(Scenario, {**FIG6, "policy": "gpipe"}))
