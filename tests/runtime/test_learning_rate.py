"""Schedules of the learning rate are those of transformers and torch; what does not fit a run is named."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim.lr_scheduler import LinearLR

from engine.errors import InputError
from engine.job.learning_rate import LearningRateSchedule
from tests.runtime.jobs import job

FINAL = st.floats(0, 1)


def theirs(schedule: str, *arguments: Any, **options: Any) -> Callable[[int], float]:
    """The factor of a step by a scheduler of transformers."""
    from transformers import optimization  # half a second, which one worker of all spends

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    lambdas: list[Callable[[int], float]] = getattr(optimization, schedule)(
        optimizer, *arguments, **options
    ).lr_lambdas
    return lambdas[0]


def compare(schedule: LearningRateSchedule, factor: Callable[[int], float], steps: int) -> None:
    """Their warm-up begins with 0 at step 0, which trains nothing: ours is a step ahead of it."""
    for step in range(steps):
        ahead = step + 1 if step < schedule.warmup_steps else step
        assert schedule.rate(2.0, step, steps) == pytest.approx(2.0 * factor(ahead), abs=1e-12)


@given(st.integers(0, 8), st.integers(2, 30), FINAL)
def test_cosine(warmup: int, left: int, final: float) -> None:
    schedule = LearningRateSchedule(warmup_steps=warmup, decay="cosine", final=final)
    # Theirs ends a step after the last one; ours in it.
    cosine = "get_cosine_with_min_lr_schedule_with_warmup"
    factor = theirs(cosine, warmup, warmup + left - 1, min_lr_rate=final)
    compare(schedule, factor if not warmup else warmed(factor, warmup), warmup + left)


@given(st.integers(0, 8), st.integers(2, 30), FINAL)
def test_linear(warmup: int, left: int, final: float) -> None:
    schedule = LearningRateSchedule(warmup_steps=warmup, decay="linear", final=final)
    to_zero = theirs("get_linear_schedule_with_warmup", warmup, warmup + left - 1)
    compare(schedule, warmed(lambda step: final + (1 - final) * to_zero(step), warmup), warmup + left)


@given(st.integers(2, 30), FINAL)
def test_linear_is_torchs_too(steps: int, final: float) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=2.0)
    rate = LinearLR(optimizer, start_factor=1.0, end_factor=final, total_iters=steps - 1)
    schedule = LearningRateSchedule(decay="linear", final=final)
    for step in range(steps):
        assert schedule.rate(2.0, step, steps) == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-9)
        optimizer.step()
        rate.step()


@given(
    st.integers(0, 8),
    st.integers(0, 20),
    st.integers(1, 20),
    FINAL,
    st.sampled_from(["linear", "cosine", "1-sqrt"]),
    st.integers(0, 5),
)
def test_wsd(warmup: int, stable: int, cooldown: int, final: float, shape: str, after: int) -> None:
    ends = warmup + stable + cooldown + 1
    schedule = LearningRateSchedule(
        warmup_steps=warmup,
        decay="wsd",
        cooldown_steps=cooldown,
        cooldown=shape,
        final=final,
        decay_steps=ends if after else None,
    )
    ends_with = {"num_stable_steps": stable, "decay_type": shape, "min_lr_ratio": final}
    factor = theirs("get_wsd_schedule", warmup, cooldown, **ends_with)
    steps = ends + after
    for step in range(steps):
        expected = (step + 1) / warmup if step < warmup else factor(step)
        assert schedule.rate(2.0, step, steps) == pytest.approx(2.0 * expected, abs=1e-12)


def warmed(factor: Callable[[int], float], warmup: int) -> Callable[[int], float]:
    """Of their factor, with a warm-up to the whole rate: some of theirs begin at the smallest one."""
    return lambda step: step / warmup if step < warmup else factor(step)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ({"warmup_steps": 11}, r"warmup_steps: 11: at most steps = 10"),
        (
            {"decay": "linear", "warmup_steps": 4, "decay_steps": 3},
            r"decay_steps: 3: at least warmup_steps = 4",
        ),
        ({"decay": "wsd"}, r"cooldown_steps.*required with decay wsd"),
        ({"decay": "wsd", "warmup_steps": 4, "cooldown_steps": 7}, r"cooldown_steps: 7: at most 6"),
        ({"decay": "wsd", "cooldown_steps": 7, "decay_steps": 5}, r"cooldown_steps: 7: at most 5"),
        ({"decay": "cosine", "cooldown_steps": 2}, r"cooldown_steps: 2: must be left out with decay cosine"),
        ({"decay": "wsdd"}, r"'constant', 'cosine', 'linear' or 'wsd'"),
    ],
)
def test_a_schedule_that_does_not_fit_the_run_is_named(schedule: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        job(steps=10, lr_schedule=schedule)


def test_a_decay_may_take_all_that_the_warm_up_leaves() -> None:
    schedule = job(steps=10, lr_schedule={"decay": "wsd", "warmup_steps": 4, "cooldown_steps": 6}).optimizer
    assert schedule.lr_schedule.rate(1.0, 9, 10) == pytest.approx(0.1)
