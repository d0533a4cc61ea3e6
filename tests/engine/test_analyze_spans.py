"""`meridian analyze` of our own spans: exactly what the simulator says of the schedule that they are of."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from engine.analyze.formats import load
from engine.analyze.result import analyze
from engine.schedule.scenario import Scenario
from engine.simulate import SimulationResult, simulate
from engine.simulate.trace import chrome_trace
from tests.engine.fig6 import FIG6

WAN: dict[str, Any] = {
    "stages": 4,
    "dc_of_stage": [0, 0, 1, 1],
    "pipelines": 2,
    "microbatches": 6,
    "times": {"forward": 2.0, "backward": 4.0},
    "wan": {"latency": 1.5, "transfer": 1.0},
}
SPLIT = {"times": {"forward": 2.0, "backward": 2.0, "weight": 2.0}}
CASES: dict[str, dict[str, Any]] = {
    "gpipe": WAN | {"policy": "gpipe"},
    "1f1b": WAN | {"policy": "1f1b"},
    "shared link": WAN | {"policy": "1f1b", "sharing": "temporal"},
    "interleaved": WAN | {"policy": "interleaved", "microbatches": 8},
    "zb-v": WAN | SPLIT | {"policy": "zb-v"},
    "zb-h1": WAN | SPLIT | {"policy": "zb-h1"},
    "sub-blocks": WAN | SPLIT | {"policy": "crosspipe-udsub"},
    "one stage": {"stages": 1, "microbatches": 4, "times": {"forward": 1, "backward": 2}, "policy": "1f1b"},
    "uneven": WAN | {"policy": "1f1b", "times": {"forward": [1, 2, 3, 4], "backward": [2, 4, 6, 8]}},
    "atlas": FIG6,
}


def simulated(case: str) -> SimulationResult:
    done = simulate(Scenario(**CASES[case]))
    assert done.timeline is not None
    return done


def lines(done: SimulationResult, iteration: int | None = None, by: float = 0.0) -> str:
    rows = []
    for span in done.spans():
        row = span.as_dict()
        row |= {name: row[name] + by for name in ("start", "end", "arrives") if name in row}
        rows.append(json.dumps(row if iteration is None else row | {"iteration": iteration}))
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize("case", CASES)
def test_utilization_and_bubbles_are_those_of_the_simulator(tmp_path: Path, case: str) -> None:
    done = simulated(case)
    assert done.timeline is not None
    (tmp_path / "spans.jsonl").write_text(lines(done))
    ours = analyze(load(tmp_path / "spans.jsonl")).as_dict()
    count, mean = done.timeline.bubbles()
    assert ours["format"] == "spans"
    assert ours["step_s"] == pytest.approx(done.makespan, rel=1e-12)
    assert ours["utilization"] == pytest.approx(done.timeline.utilization(), rel=1e-12)
    assert ours["bubbles"]["fraction"] == pytest.approx(1 - done.timeline.utilization(), rel=1e-12)
    assert ours["bubbles"]["total_s"] == pytest.approx(float((count * mean).sum()), rel=1e-9)


@pytest.mark.parametrize("case", [case for case in CASES if case != "atlas"])
def test_the_replay_takes_as_long_as_the_schedule(tmp_path: Path, case: str) -> None:
    done = simulated(case)
    (tmp_path / "spans.jsonl").write_text(lines(done))
    ours = analyze(load(tmp_path / "spans.jsonl")).as_dict()
    assert ours["no_delay_step_s"] == pytest.approx(done.makespan, rel=1e-9)
    assert ours["launch_slowdown"] == pytest.approx(1, rel=1e-9)
    if case != "uneven":
        assert ours["slowdown"] == pytest.approx(1, rel=1e-9)
    path = ours["critical_path"]
    assert path[0]["start_s"] == 0
    assert path[-1]["end_s"] == pytest.approx(done.makespan)


def test_a_slow_last_stage_is_found(tmp_path: Path) -> None:
    (tmp_path / "spans.jsonl").write_text(lines(simulated("uneven")))
    ours = analyze(load(tmp_path / "spans.jsonl")).as_dict()
    by_stage = ours["slowdown_by_stage"]
    assert max(by_stage, key=by_stage.get) == "3"
    assert ours["slowest_workers"]["workers"][0].endswith(",3")


def test_a_short_answer_of_simulate_on_one_line_is_no_line_of_spans(tmp_path: Path) -> None:
    path = tmp_path / "answer.json"
    answer = simulated("one stage").as_dict()
    path.write_text(json.dumps(answer) + "\n")
    assert analyze(load(path)).as_dict()["utilization"] == pytest.approx(answer["utilization"])


def test_an_answer_of_simulate_and_a_packed_file_read_the_same(tmp_path: Path) -> None:
    done = simulated("1f1b")
    (tmp_path / "spans.jsonl").write_text(lines(done))
    (tmp_path / "result.json").write_text(json.dumps(done.as_dict(), indent=1))
    (tmp_path / "spans.jsonl.gz").write_bytes(gzip.compress(lines(done).encode()))
    plain = analyze(load(tmp_path / "spans.jsonl")).as_dict()
    assert analyze(load(tmp_path / "result.json")).as_dict() == plain
    assert analyze(load(tmp_path / "spans.jsonl.gz")).as_dict() == plain


@pytest.mark.parametrize("case", ["1f1b", "interleaved", "one stage"])
def test_a_chrome_trace_of_spans_says_the_same(tmp_path: Path, case: str) -> None:
    """Perfetto's JSON: as an object, as a list, and as a list whose end was never written."""
    done = simulated(case)
    assert done.timeline is not None
    document = chrome_trace(done.spans(), "s")
    events = json.dumps(document["traceEvents"], indent=1)
    for name, text in (
        ("object", json.dumps(document)),
        ("list", events),
        ("open list", events.rstrip().removesuffix("]") + ",\n"),
    ):
        (tmp_path / name).write_text(text)
        ours = analyze(load(tmp_path / name)).as_dict()
        assert ours["format"] == "perfetto"
        assert ours["step_s"] == pytest.approx(done.makespan, rel=1e-9)
        assert ours["utilization"] == pytest.approx(done.timeline.utilization(), rel=1e-9)
        assert ours["no_delay_step_s"] == pytest.approx(done.makespan, rel=1e-9)


def test_iterations_are_steps(tmp_path: Path) -> None:
    done = simulated("1f1b")
    text = "".join(lines(done, iteration, 1000.0 * iteration) for iteration in range(3))
    (tmp_path / "spans.jsonl").write_text(text)
    ours = analyze(load(tmp_path / "spans.jsonl")).as_dict()
    assert ours["steps"] == 3
    assert ours["step_s"] == pytest.approx(done.makespan)
    assert [step["step"] for step in ours["by_step"]] == [0, 1, 2]
