"""Workers of a swap plan: when a global batch is full, and what its all-reduce takes."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.plan.swap.fleet import Fleet, Worker, ring_allreduce_s, seconds_to_fill

WORKER = st.builds(
    lambda count, accumulation, step: Worker(
        label="x", count=count, accumulation=accumulation, step_s=step / 8, first_load_s=1.0
    ),
    count=st.integers(1, 4),
    accumulation=st.integers(1, 5),
    step=st.integers(1, 40),
)


def by_the_clock(workers: list[Worker], batch: int) -> float:
    """Steps that end, one after the other, until the batch is full."""
    ends = sorted(
        (worker.step_s * i, worker.count * worker.accumulation)
        for worker in workers
        for i in range(1, batch + 1)
    )
    done = itertools.accumulate(size for _, size in ends)
    return next(end for (end, _), total in zip(ends, done, strict=True) if total >= batch)


@given(workers=st.lists(WORKER, min_size=1, max_size=4), batch=st.integers(1, 200))
def test_a_global_batch_is_full_when_the_steps_that_ended_hold_it(workers: list[Worker], batch: int) -> None:
    assert seconds_to_fill(workers, batch) == pytest.approx(by_the_clock(workers, batch))


@given(workers=st.lists(WORKER, min_size=1, max_size=3), more=WORKER, batch=st.integers(1, 100))
def test_another_worker_never_makes_it_later(workers: list[Worker], more: Worker, batch: int) -> None:
    assert seconds_to_fill([*workers, more], batch) <= seconds_to_fill(workers, batch)


def test_a_ring_sends_twice_all_but_its_own_part() -> None:
    # 4 workers, 1 GB, 1 Gbit/s: 2 · 3/4 · 8 s
    assert ring_allreduce_s(1e9, 4, 1e9 / 8) == pytest.approx(12.0)
    assert ring_allreduce_s(1e9, 1, 1e9 / 8) == 0.0


def test_an_update_is_the_batch_the_all_reduce_and_the_slowest_first_load() -> None:
    workers = (
        Worker(label="a", count=1, accumulation=2, step_s=3.0, first_load_s=0.5),
        Worker(label="b", count=2, accumulation=1, step_s=2.0, first_load_s=0.75),
    )
    fleet = Fleet(workers=workers, gradient_bytes=1.0, allreduce_s=4.0, global_batch=5, batch_s=4.0)
    assert fleet.update_s == pytest.approx(8.75)
    assert fleet.minibatches_per_s == pytest.approx(2 / 3 + 1)
