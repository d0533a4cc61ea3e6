"""Gaps between kernels in swap plans: a sub-model takes as long as its kernels and its gaps together."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.errors import InputError
from engine.inputs import parse
from engine.plan.swap.plan import plan_swap
from engine.plan.swap.request import SwapRequest
from engine.plan.swap.result import SwapResult

MODEL = {"layers": 4, "hidden": 512, "heads": 8, "seq": 256, "vocab": 1024}
BLOCKS = 4


def plan(gap_s: float, **changes: Any) -> SwapResult:
    gpu = {"memory_bytes": 2e8, "tflops": 10, "host_to_device_gb_s": 10}
    values = {"model": MODEL, "gpu": gpu, "micro_batch": 4, "block_gap_s": gap_s, **changes}
    return plan_swap(parse(SwapRequest, values))


@settings(max_examples=12)
@given(gap_ms=st.floats(0.01, 20), recompute=st.booleans(), accumulation=st.integers(1, 64))
def test_a_mini_batch_takes_its_kernels_and_its_gaps(
    gap_ms: float, recompute: bool, accumulation: int
) -> None:
    """Closed form: the sums of all sub-models are those without gaps, and four times a block's gaps."""
    # Without recomputation the activations of all mini-batches stay.
    gpu = {"memory_bytes": 2e8 if recompute else 1e12, "tflops": 10, "host_to_device_gb_s": 10}
    common = {"recompute": recompute, "accumulation": accumulation, "gpu": gpu}
    without, with_gaps = plan(0, **common), plan(gap_ms / 1e3, **common)
    kernels_s, whole_s = (
        sum(sub.forward_s + sub.backward_s for sub in each.subs) for each in (without, with_gaps)
    )
    assert whole_s == pytest.approx(kernels_s + BLOCKS * gap_ms / 1e3)
    assert sum(sub.gap_s for sub in with_gaps.subs) == pytest.approx(BLOCKS * gap_ms / 1e3)
    backward_over_forward = 3 if recompute else 2
    for sub in with_gaps.subs:
        assert sub.backward_s == pytest.approx(backward_over_forward * sub.forward_s)
    assert with_gaps.step is not None
    assert with_gaps.step.busy_s == pytest.approx(accumulation * whole_s)
    share = accumulation * kernels_s / with_gaps.step.step_s
    assert with_gaps.kernel_utilization == pytest.approx(share)


def test_the_simulated_step_is_the_closed_form_where_nothing_is_loaded() -> None:
    """One sub-model: C mini-batches forward and backward, 4 kernels' times and a gap each."""
    gpu = {"memory_bytes": 1e12, "tflops": 10, "host_to_device_gb_s": 10}
    result = plan(0.002, gpu=gpu, accumulation=3)
    kernels_s = sum(sub.forward_s + sub.backward_s - sub.gap_s for sub in result.subs)
    spans = result.spans()
    assert max(span.end for span in spans) == pytest.approx(3 * (kernels_s + BLOCKS * 0.002))
    assert result.as_dict()["utilization"] == 1.0
    assert result.as_dict()["kernel_utilization"] == pytest.approx(kernels_s / (kernels_s + BLOCKS * 0.002))


def test_gaps_hide_loads_so_that_fewer_mini_batches_do() -> None:
    few, many = plan(0.01).accumulation, plan(0).accumulation
    assert few is not None
    assert many is not None
    assert few < many


def test_without_gaps_an_answer_says_nothing_of_them() -> None:
    answer = plan(0).as_dict()
    assert "kernel_utilization" not in answer
    assert all("gap_s" not in sub for sub in answer["sub_models"])
    assert (
        plan(0).as_dict()
        == plan_swap(
            parse(
                SwapRequest,
                {
                    "model": MODEL,
                    "gpu": {"memory_bytes": 2e8, "tflops": 10, "host_to_device_gb_s": 10},
                    "micro_batch": 4,
                },
            )
        ).as_dict()
    )


def test_measured_layers_have_their_own_gaps() -> None:
    layer = {"name": "a", "memory_bytes": 1, "forward_s": 1, "backward_s": 2, "load_s": 0}
    document = {"layers": [layer], "gpu": {"memory_bytes": 4}, "block_gap_s": 0.1}
    with pytest.raises(InputError, match=r"block_gap_s.*layers have their own times"):
        parse(SwapRequest, document)
    with pytest.raises(InputError, match="block_gap_s"):
        parse(SwapRequest, {"model": "tiny", "gpu": {"name": "v100"}, "block_gap_s": -1})
