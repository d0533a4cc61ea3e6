"""Our orders as Megatron-LM runs them: against a recorded run, and against Megatron where it is installed."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from engine.cli import cli
from engine.errors import InputError
from engine.schedule import Built, Schedule, build
from engine.schedule.ir import Op
from engine.schedule.megatron import MegatronPipeline, megatron_pipeline
from engine.schedule.scenario import Scenario, Times
from tests.runtime.megatron_ranks import CASES, recorded

# What `python -m tests.runtime.megatron_ranks` printed, with its source.
RECORDED = json.loads(Path(__file__).with_name("megatron_orders.json").read_text())
TIMES = Times(forward=1, backward=2)


def settings_of(case: str) -> MegatronPipeline:
    """The settings of a case of `megatron_ranks`."""
    stages, chunks, microbatches, group = CASES[case]
    return MegatronPipeline(
        stages=stages, chunks=chunks or 1, microbatches=microbatches, group=group or microbatches
    )


def schedule_of(stages: int, microbatches: int, policy: str, **fields: Any) -> Schedule:
    """What a policy builds."""
    built = build(Scenario(stages=stages, microbatches=microbatches, policy=policy, times=TIMES, **fields))
    assert isinstance(built, Built)
    return built.schedule


def text_of(ops: list[Op]) -> str:
    """As `megatron_ranks` writes what a rank ran."""
    return " ".join(f"{op.kind.name}{op.microbatch}.{op.chunk}" for op in ops)


def rows_of(settings: MegatronPipeline) -> list[str]:
    """The order of each rank under Megatron's settings, as we know them."""
    return [text_of(settings.order(stage)) for stage in range(settings.stages)]


@pytest.mark.parametrize("case", CASES)
def test_the_order_of_the_settings_is_what_megatron_ran(case: str) -> None:
    assert RECORDED["source"] == "megatron-core 0.16.1"
    assert rows_of(settings_of(case)) == RECORDED["cases"][case]


@pytest.mark.parametrize("case", [case for case in CASES if " by " not in case])
def test_our_policies_are_what_megatron_ran(case: str) -> None:
    stages, chunks, microbatches, _ = CASES[case]
    policy = "1f1b" if chunks is None else "interleaved"
    schedule = schedule_of(stages, microbatches, policy, chunks=chunks)
    ours = [text_of(list(schedule.order(0, stage))) for stage in range(stages)]
    assert ours == RECORDED["cases"][case]
    assert megatron_pipeline(schedule) == settings_of(case)


def test_megatron_runs_them_still() -> None:
    pytest.importorskip("megatron.core")
    assert recorded() == RECORDED["cases"]


@given(st.integers(2, 6), st.integers(1, 3), st.integers(1, 4))
def test_settings_are_those_of_the_policy(stages: int, chunks: int, groups: int) -> None:
    policy = "1f1b" if chunks == 1 else "interleaved"
    more = {} if chunks == 1 else {"chunks": chunks}
    settings = megatron_pipeline(schedule_of(stages, groups * stages, policy, **more))
    assert (settings.stages, settings.chunks, settings.microbatches) == (stages, chunks, groups * stages)
    if chunks > 1:
        assert settings.group == stages
    for stage in range(stages):
        counted = Counter(op.kind.name for op in settings.order(stage))
        assert counted == {"F": groups * stages * chunks, "B": groups * stages * chunks}


@pytest.mark.parametrize(
    ("policy", "fields", "message"),
    [
        ("gpipe", {}, "P0 S0: op 3 is F3, and B0 in Megatron's 1F1B"),
        ("zb-h1", {"times": Times(forward=1, backward=1, weight=1)}, "runs W0, and Megatron's pipeline has"),
        (
            "1f1b",
            {"times": Times(forward=1, recompute=1, backward=2)},
            "runs R0, and Megatron's pipeline has",
        ),
        ("crosspipe-wave", {}, "goes through the chunks in a wave: Megatron has a loop"),
    ],
)
def test_another_order_is_refused_with_the_op(policy: str, fields: dict[str, Any], message: str) -> None:
    built = build(Scenario(stages=3, microbatches=6, policy=policy, **{"times": TIMES, **fields}))
    assert isinstance(built, Built)
    with pytest.raises(ValueError, match=message.replace("'", ".")):
        megatron_pipeline(built.schedule)


def test_groups_that_megatron_refuses_are_refused() -> None:
    with pytest.raises(ValueError, match="3 microbatches in groups of 3: Megatron needs at least 4"):
        megatron_pipeline(schedule_of(4, 3, "interleaved"))


def test_the_command_writes_the_settings(tmp_path: Path) -> None:
    scenario = {"stages": 2, "microbatches": 4, "policy": "interleaved", "times": TIMES.model_dump()}
    (tmp_path / "a.json").write_text(json.dumps(scenario))
    line = ["simulate", str(tmp_path / "a.json"), "--megatron", str(tmp_path / "out")]
    assert CliRunner().invoke(cli, line, standalone_mode=False).exception is None
    assert (tmp_path / "out/arguments.txt").read_text() == (
        "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 "
        "--microbatch-group-size-per-virtual-pipeline-stage 2\n"
    )
    assert json.loads((tmp_path / "out/config.json").read_text()) == {
        "pipeline_model_parallel_size": 2,
        "virtual_pipeline_model_parallel_size": 2,
        "microbatch_group_size_per_vp_stage": 2,
        "overlap_p2p_comm": True,
        "batch_p2p_comm": False,
        "num_microbatches": 4,
    }
    (tmp_path / "a.json").write_text(json.dumps({**scenario, "policy": "gpipe"}))
    refused = CliRunner().invoke(cli, line, standalone_mode=False).exception
    assert isinstance(refused, InputError)
    assert refused.field == "--megatron"
