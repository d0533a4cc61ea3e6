"""ATOM's figures: each that the text prints has its row; what it says without a figure holds, too."""

import pytest

from engine.inputs import parse
from engine.plan.swap.plan import plan_swap
from engine.plan.swap.request import SwapRequest
from engine.reproduce.atom import EXPERIMENTS, busy_swapping_out, fleet, gains, loading


def test_every_row_is_as_it_says_and_no_printed_figure_is_missing() -> None:
    rows = [row for experiment in EXPERIMENTS for row in experiment.run().rows]
    assert [row.name for row in rows if row.ok is False] == []
    printed = [row.paper for row in rows]
    assert {6, 8, 12, 16, 20, 32, 40, 96, 700, 2.8, 68, 2.4, 1_920, 3_072, 91.9, 46.3, 18.3} <= set(printed)
    assert len({row.name for row in rows}) == len(rows)


def test_a_gpu_that_swaps_out_waits_for_what_it_sends() -> None:
    """Three sub-models of one layer: 27 s of work, and two leave after each pass, in 1 s each."""
    layer = {"name": "a", "memory_bytes": 1e9, "forward_s": 3, "backward_s": 6, "load_s": 1, "cut_bytes": 0}
    document = {"layers": [layer] * 3, "gpu": {"memory_bytes": 2e9}, "accumulation": 1}
    result = plan_swap(parse(SwapRequest, document))
    assert len(result.subs) == 3
    assert busy_swapping_out(result) == pytest.approx(27 / 31)


def test_a_block_of_each_model_loads_faster_than_its_activation_is_sent() -> None:
    (plot,) = loading().plots
    load, send = plot.series
    assert all(a < b for a, b in zip(load.y, send.y, strict=True))


def test_pipedream_is_never_slower_than_gpipe() -> None:
    for microbatches in (1, 4, 16):
        gain = gains(400, microbatches=microbatches, shared=True)
        assert gain["pipedream"] <= gain["gpipe"] * (1 + 1e-9)


def test_the_all_reduce_hardly_grows_with_workers() -> None:
    """ "No dramatic change" (Fig. 16c): a ring sends 2(N − 1)/N of the gradients."""
    four, twelve = fleet(4), fleet(12)
    assert four.allreduce_s is not None
    assert twelve.allreduce_s is not None
    assert 1 < twelve.allreduce_s / four.allreduce_s < 1.25


def test_slower_gpus_still_shorten_a_global_batch() -> None:
    """Four GTX 1080 Ti and four GTX 1080 beside four V100s, each kind at its own pace and partition."""
    mixed = [
        {"gpu": {"name": "v100"}, "count": 4},
        {"gpu": {"memory_bytes": 11 * 2**30, "tflops": 11.34}, "count": 4},
        {"gpu": {"memory_bytes": 8 * 2**30, "tflops": 8.87}, "count": 4},
    ]
    together, alone = fleet(mixed), fleet(4)
    assert together.update_s is not None
    assert alone.update_s is not None
    assert together.update_s < alone.update_s
