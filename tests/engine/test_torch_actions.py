"""`meridian simulate --torch`: the files, and the orders that torch's runtime cannot run."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from engine.cli import cli
from engine.errors import InputError
from engine.schedule.text import parse_schedule
from engine.schedule.torch_actions import torch_actions
from engine.schedule.torch_exchange import add_exchange

SCENARIO = {
    "stages": 2,
    "dc_of_stage": [0, 1],
    "pipelines": 2,
    "microbatches": 2,
    "policy": "1f1b",
    "times": {"forward": 1, "backward": 2},
}


def simulate(folder: Path, document: dict, *options: str) -> None:
    """Run the command; its errors are raised."""
    (folder / "scenario.json").write_text(json.dumps(document))
    line = ["simulate", str(folder / "scenario.json"), *options]
    result = CliRunner().invoke(cli, line, standalone_mode=False)
    if result.exception is not None:
        raise result.exception


def test_each_pipeline_has_a_file_of_a_row_per_rank(tmp_path: Path) -> None:
    simulate(tmp_path, SCENARIO, "--torch", str(tmp_path / "torch"))
    assert sorted(path.name for path in (tmp_path / "torch").iterdir()) == ["pipeline0.csv", "pipeline1.csv"]
    for pipeline in range(2):
        text = (tmp_path / f"torch/pipeline{pipeline}.csv").read_text()
        assert text == (
            "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD\n"
            "1RECV_F0,1F0,1RECV_F1,1B0,1SEND_B0,1F1,1B1,1SEND_B1,1REDUCE_GRAD\n"
        )


def test_a_split_backward_has_input_and_weight_parts(tmp_path: Path) -> None:
    times = {"forward": 1, "backward": 1, "weight": 1}
    simulate(tmp_path, {**SCENARIO, "policy": "zb-h1", "times": times}, "--torch", str(tmp_path))
    first, last = (tmp_path / "pipeline0.csv").read_text().splitlines()
    assert {"0F0", "0F1", "0I0", "0I1", "0W0", "0W1", "0SEND_F0", "0RECV_B1"} <= set(first.split(","))
    assert first.endswith("0W1,0REDUCE_GRAD")
    assert {"1F0", "1F1", "1I0", "1I1", "1W0", "1W1", "1RECV_F0", "1SEND_B1"} <= set(last.split(","))


def test_an_infeasible_scenario_writes_nothing(tmp_path: Path) -> None:
    simulate(tmp_path, {**SCENARIO, "policy": "gpipe", "memory_limit": 1}, "--torch", str(tmp_path / "torch"))
    assert not (tmp_path / "torch").exists()


def test_recomputation_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    times = {"forward": 1, "backward": 2, "recompute": 1}
    with pytest.raises(InputError, match=r"--torch.*runs R0, and torch has no action.*times\.recompute to 0"):
        simulate(tmp_path, {**SCENARIO, "times": times}, "--torch", str(tmp_path / "torch"))
    assert not (tmp_path / "torch").exists()


def test_it_is_for_one_policy(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"--torch: .*: not together with --compare"):
        simulate(tmp_path, SCENARIO, "--torch", str(tmp_path), "--compare", "1f1b,gpipe")


HEAD = "microbatches 2, chunks 1, traversal straight, sharing spatial, gate none\n"


def exchanged(text: str) -> list[str]:
    """The rows of a schedule with sends and receives."""
    schedule = parse_schedule(text)
    return [" ".join(row) for row in add_exchange(torch_actions(schedule), schedule)]


def test_a_last_position_out_of_microbatch_order_is_refused() -> None:
    schedule = parse_schedule(HEAD + "P0 S0: F0 F1 B0 B1\nP0 S1: F1 F0 B0 B1\nlink 0>1: P0/1 P0/0")
    with pytest.raises(ValueError, match="S1 runs F1 where torch expects microbatch 0"):
        torch_actions(schedule)


def test_an_output_waits_for_its_turn_on_a_listed_link() -> None:
    rows = "P0 S0: F0 F1 B0 B1\nP0 S1: F1 F0 B0 B1\nP0 S2: F0 F1 B0 B1\n"
    assert exchanged(HEAD + rows + "link 0>1: P0/1 P0/0") == [
        "0F0 0F1 0SEND_F1 0SEND_F0 0RECV_B0 0B0 0RECV_B1 0B1",
        "1RECV_F1 1RECV_F0 1F1 1SEND_F1 1F0 1SEND_F0 1RECV_B0 1B0 1SEND_B0 1RECV_B1 1B1 1SEND_B1",
        "2RECV_F1 2RECV_F0 2F0 2F1 2B0 2SEND_B0 2B1 2SEND_B1",
    ]


def test_ops_and_transfers_that_wait_for_each_other_are_named() -> None:
    # The gradient of microbatch 1 is to go first, but stage 0 must answer with nothing in between.
    rows = "P0 S0: F0 B0 F1 B1\nP0 S1: F0 F1 B0 B1\n"
    with pytest.raises(
        ValueError, match="ops and transfers wait for each other: rank 0 at 0B0, rank 1 at 1F1"
    ):
        exchanged(HEAD + rows)


@pytest.mark.parametrize("link", ["0>1", "1>2", "2>1", "1>0"])
def test_the_links_of_a_loop_are_told_apart(link: str) -> None:
    head = "microbatches 1, chunks 2, traversal loop, sharing spatial, gate none\n"
    rows = "P0 S0: F0 F0.1 B0.1 B0\nP0 S1: F0 F0.1 B0.1 B0\n"
    # Stage 0 sends chunks 0 and 1 on; the last stage's hop to the first has one transfer each way.
    order = {"0>1": "P0/0 P0/0.1", "1>2": "P0/0", "2>1": "P0/0.1", "1>0": "P0/0.1 P0/0"}
    assert exchanged(f"{head}{rows}link {link}: {order[link]}")[0] == (
        "0F0 0SEND_F0 2RECV_F0 2F0 2SEND_F0 2RECV_B0 2B0 2SEND_B0 0RECV_B0 0B0"
    )
