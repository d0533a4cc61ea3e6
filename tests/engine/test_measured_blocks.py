"""A block that was measured on a type of GPU stands in for its model there, and only there."""

import pytest

from engine.cluster.gpus import gpu
from engine.inputs import parse
from engine.model.measured_blocks import measured_block
from engine.model.presets import PRESETS
from engine.plan.request import JobInput, Layout
from engine.plan.stages import stages_of

LLAMA = PRESETS["llama-3-8b"]  # 8,192 tokens


@pytest.mark.parametrize("recompute", [True, False])
def test_a_measured_shape_has_its_measured_seconds(recompute: bool) -> None:
    result = measured_block("h100", LLAMA, 1, recompute=recompute)
    assert result is not None
    assert (result.forward_s, result.backward_s) == pytest.approx((7.1028e-3, 15.4423e-3))
    assert result.recompute_s == (pytest.approx(7.0835e-3) if recompute else 0.0)


def test_no_other_shape_and_no_other_gpu_has_them() -> None:
    assert measured_block("h100", LLAMA, 2, recompute=True) is None
    assert measured_block("a100-80g", LLAMA, 1, recompute=True) is None
    assert measured_block("h100", PRESETS["llama-3-70b"], 1, recompute=True) is None


def test_the_planner_prefers_them_to_rooflines() -> None:
    given = parse(JobInput, {"model": "llama-3-8b", "partitions": 4, "microbatches": 8})

    def middle_forward_s(gpu_type: str, tp: int) -> float:
        layout = Layout(partitions=4, tp=tp, micro_batch=1)
        return stages_of(given, layout, LLAMA).on(gpu(gpu_type))[1].forward_s

    assert middle_forward_s("h100", 1) == pytest.approx(8 * 7.1028e-3)
    assert middle_forward_s("h100", 2) < 8 * 7.1028e-3 / 1.5  # a block on two GPUs was not measured
    assert middle_forward_s("h200", 1) == pytest.approx(8 * 7.1828e-3)
    assert middle_forward_s("a100-80g", 1) > 1.5 * 8 * 7.1028e-3  # nor one on another type
