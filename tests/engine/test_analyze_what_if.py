"""What-ifs of `meridian analyze`: measured durations in other schedules take what those schedules take."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from engine.analyze.formats import Loaded, load
from engine.analyze.what_if import what_if
from engine.commands.analyze import command
from engine.errors import InputError
from engine.schedule.scenario import Scenario
from engine.simulate import simulate
from tests.engine.op_traces import two_stages, write

CELL: dict[str, Any] = {
    "stages": 4,
    "dc_of_stage": [0, 1, 2, 3],
    "microbatches": 8,
    "times": {"forward": [2.0, 2.0, 2.0, 3.0], "backward": [4.0, 4.0, 4.0, 6.0]},
    "wan": {"latency": 0.5, "transfer": 0.25},
}


def makespan(**change: Any) -> float:
    slots = simulate(Scenario(**(CELL | change))).makespan
    assert slots is not None
    return slots


def recorded(folder: Path, **scenario: Any) -> Loaded:
    done = simulate(Scenario(**(CELL | scenario)))
    path = folder / "spans.jsonl"
    path.write_text("".join(json.dumps(span.as_dict()) + "\n" for span in done.spans()))
    return load(path)


@pytest.mark.parametrize("policy", ["gpipe", "1f1b"])
def test_another_policy_takes_what_it_takes(tmp_path: Path, policy: str) -> None:
    answer = what_if(recorded(tmp_path, policy="1f1b"), f"policy={policy}").as_dict()
    assert answer["base_s"] == pytest.approx(makespan(policy="1f1b"))
    assert answer["step_s"] == pytest.approx(makespan(policy=policy))
    assert answer["speedup"] == pytest.approx(answer["base_s"] / answer["step_s"])


def test_even_stages_take_what_even_stages_take(tmp_path: Path) -> None:
    answer = what_if(recorded(tmp_path, policy="1f1b"), f"stages=1,1,1,{2 / 3}").as_dict()
    even = {"forward": 2.0, "backward": 4.0}
    assert answer["step_s"] == pytest.approx(makespan(policy="1f1b", times=even))
    assert answer["speedup"] > 1


def test_other_links_take_what_they_take(tmp_path: Path) -> None:
    answer = what_if(recorded(tmp_path, policy="1f1b"), "link=3,1").as_dict()
    assert answer["step_s"] == pytest.approx(makespan(policy="1f1b", wan={"latency": 3, "transfer": 1}))
    assert answer["speedup"] < 1


@pytest.mark.parametrize("policy", ["interleaved", "zb-v", "crosspipe-udsub"])
def test_chunks_are_simulated_in_their_order(tmp_path: Path, policy: str) -> None:
    """A loop, a wave, and sub-blocks of one stage."""
    alike = {"forward": 2.0, "backward": 2.0, "weight": 2.0}
    scenario = {"policy": policy, "wan": {}, "times": alike}
    answer = what_if(recorded(tmp_path, **scenario), "stages=1,1,1,1").as_dict()
    assert answer["base_s"] == pytest.approx(makespan(**scenario))
    assert answer["speedup"] == pytest.approx(1)


def test_equal_workers_take_the_mean_of_their_stage(tmp_path: Path) -> None:
    """Of two replicas one is twice as slow; transfers take nothing, and optimizers 1 s."""
    rows = []
    for replica, slow in ((0, 1.0), (1, 2.0)):
        one = two_stages((2 * slow, 2 * slow), (4 * slow, 4 * slow), 0.0, 4)
        rows += [row | {"dp_rank": replica} for row in one]
    answer = what_if(load(write(rows, tmp_path / "trace.parquet")), "equal-workers").as_dict()
    assert answer["base_s"] == pytest.approx(5 * 12 + 1)
    assert answer["step_s"] == pytest.approx(5 * 9 + 1)
    assert answer["utilization"] == pytest.approx(4 * 9 / (5 * 9 + 1))


@pytest.mark.parametrize(
    ("question", "message"),
    [
        ("faster", "must be equal-workers"),
        ("policy=fast", "policy must be one of gpipe"),
        ("stages=1,2", "needs 4 numbers"),
        ("link=1,-1", "needs 2 numbers"),
        ("link=a", "needs 2 numbers"),
        ("stages=0,1,1,1", "greater than 0"),
    ],
)
def test_a_question_of_no_form_is_refused(tmp_path: Path, question: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        what_if(recorded(tmp_path, policy="1f1b"), question)


def test_the_command_prints_tables_and_json(tmp_path: Path) -> None:
    recorded(tmp_path, policy="1f1b")
    line = [str(tmp_path / "spans.jsonl"), "--what-if", "equal-workers", "--what-if", "policy=gpipe"]
    printed = CliRunner().invoke(command, line)
    assert printed.exit_code == 0
    for text in ("utilization", "Critical path of step 0", "slowdown", "policy=gpipe"):
        assert text in printed.output
    answer = json.loads(CliRunner().invoke(command, [*line, "--json"]).stdout)
    assert [one["what_if"] for one in answer["what_if"]] == ["equal-workers", "policy=gpipe"]
    assert answer["what_if"][0]["speedup"] == pytest.approx(1)
