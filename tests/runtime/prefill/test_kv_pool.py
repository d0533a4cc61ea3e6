"""Caches stay within their budget, and none outlives its lease, whatever happens."""

import random
import threading
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.errors import Infeasible, InputError
from engine.serve.kv_pool import Freed, KvPool, KvShape, LeaseEnded
from engine.serve.pipeline import PrefillResult
from tests.runtime.prefill.checkpoints import pipeline, prompt, save

SHAPE = KvShape(first_layer=0, layers=2, kv_heads=2, head_size=4, dtype="bf16", block_tokens=4)
BLOCKS = 10


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def pool_of(clock: Clock) -> KvPool:
    # Not a whole number of blocks: what is over stays unused.
    return KvPool(SHAPE, budget_bytes=SHAPE.block_bytes * BLOCKS + 5, clock=clock)


class Holding(RuleBasedStateMachine):
    """Against a model that knows of each request only its blocks and when its lease ends."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.pool = pool_of(self.clock)
        self.held: dict[str, tuple[int, float]] = {}
        self.count = 0

    @rule(tokens=st.integers(1, 50), lease_s=st.integers(1, 5))
    def reserve(self, tokens: int, lease_s: int) -> None:
        blocks = -(-tokens // 4)
        fits = blocks + sum(size for size, _ in self.held.values()) <= BLOCKS
        name, self.count = str(self.count), self.count + 1
        refused = self.pool.reserve(name, tokens, lease_s=lease_s)
        assert (refused is None) == fits
        if fits:
            self.held[name] = (blocks, self.clock.now + lease_s)

    @rule(seconds=st.integers(1, 3))
    def passes(self, seconds: int) -> None:
        self.clock.now += seconds
        over = {name for name, (_, ends) in self.held.items() if ends <= self.clock.now}
        assert set(self.pool.expire()) == over
        for name in over:
            del self.held[name]

    @rule(which=st.integers(0, 100))
    def give_up(self, which: int) -> None:
        name = str(which)
        assert self.pool.free(name, Freed.ABORTED) == (name in self.held)
        self.held.pop(name, None)

    @invariant()
    def what_is_held_is_what_is_counted(self) -> None:
        blocks = sum(size for size, _ in self.held.values())
        assert self.pool.bytes_in_use == blocks * SHAPE.block_bytes
        assert self.pool.free_bytes == (BLOCKS - blocks) * SHAPE.block_bytes
        assert set(self.pool.requests) == set(self.held)


Holding.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestHolding = Holding.TestCase


def test_blocks_of_different_requests_are_different() -> None:
    pool = pool_of(Clock())
    blocks = []
    for name, tokens in (("a", 13), ("b", 1), ("c", 4)):
        pool.reserve(name, tokens, lease_s=1)
        with pool.pinned(name) as cache:
            blocks += cache.blocks
    assert len(blocks) == len(set(blocks)) == 4 + 1 + 1


def test_what_is_in_use_is_freed_when_its_user_is_done() -> None:
    clock = Clock()
    pool = pool_of(clock)
    pool.reserve("a", 8, lease_s=1)
    with pool.pinned("a") as cache:
        clock.now = 2
        assert pool.expire() == ["a"]
        assert cache.states.numel() > 0
        assert pool.bytes_in_use == 2 * SHAPE.block_bytes
        with pytest.raises(LeaseEnded), pool.pinned("a"):
            pass
    assert pool.bytes_in_use == 0
    assert cache.states.numel() == 0  # whoever still knows the cache keeps no memory of it


def test_a_request_of_the_same_name_is_another() -> None:
    pool = pool_of(Clock())
    pool.reserve("a", 8, lease_s=1)
    with pool.pinned("a") as old:
        pass
    pool.free("a", Freed.ABORTED)
    pool.reserve("a", 12, lease_s=1)
    assert not pool.free("a", Freed.DECODER_LOST, same=old)
    with pytest.raises(LeaseEnded), pool.pinned("a", same=old):
        pass
    with pool.pinned("a") as new:
        assert new.tokens == 12


def test_a_refusal_has_the_figures() -> None:
    pool = pool_of(Clock())
    pool.reserve("a", 30, lease_s=1)
    refused = pool.reserve("b", 12, lease_s=1)
    assert isinstance(refused, Infeasible)
    needed, free = 3 * SHAPE.block_bytes, 2 * SHAPE.block_bytes
    assert refused.reason == (
        f"kv_space: 12 tokens need {needed:,} bytes of KV cache; {free:,} of {pool.budget_bytes:,} are free"
    )


def test_memory_that_training_has_taken_is_no_loss_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = pool_of(Clock())
    with monkeypatch.context() as patched:
        patched.setattr(torch, "empty", full)
        refused = pool.reserve("a", 30, lease_s=1)
    assert isinstance(refused, Infeasible)
    assert refused.reason.startswith("kv_space")
    assert pool.bytes_in_use == 0
    assert pool.reserve("a", 40, lease_s=1) is None


def full(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("kv_budget_bytes", lambda pool: KvPool(SHAPE, budget_bytes=SHAPE.block_bytes - 1)),
        ("tokens", lambda pool: pool.reserve("b", 0, lease_s=1)),
        ("lease_s", lambda pool: pool.reserve("b", 1, lease_s=0)),
        ("request", lambda pool: pool.reserve("a", 1, lease_s=1)),
        ("request", lambda pool: pool.offer("a", lease_s=1)),  # nothing is in it
    ],
)
def test_bad_input_names_the_field(field: str, call) -> None:  # type: ignore[no-untyped-def]
    pool = pool_of(Clock())
    pool.reserve("a", 1, lease_s=1)
    with pytest.raises(InputError) as caught:
        call(pool)
    assert caught.value.field == field


def test_ten_thousand_requests_leave_nothing() -> None:
    """From several threads: handed over, aborted, expired, decoder lost, refused; no byte stays in use."""
    clock = Clock()
    pool = pool_of(clock)
    refused = [0] * 4

    def work(thread: int) -> None:
        rng = random.Random(thread)
        for number in range(2500):
            name = f"{thread}/{number}"
            if pool.reserve(name, rng.randrange(1, 14), lease_s=rng.random()) is not None:
                refused[thread] += 1
                clock.now += 0.05
                continue
            try:
                with pool.pinned(name) as cache:
                    cache.filled = cache.tokens
                    pool.offer(name, lease_s=rng.random())
                    assert pool.claim(name, cache.blocks) is cache
            except LeaseEnded:
                continue
            why = rng.choice([*Freed])
            if why is not Freed.EXPIRED:
                pool.free(name, why)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    clock.now += 10
    pool.expire()
    assert pool.bytes_in_use == 0
    assert pool.free_bytes == BLOCKS * SHAPE.block_bytes
    assert sum(pool.freed.values()) + sum(refused) == 10_000
    assert all(pool.freed[why] > 0 for why in Freed)


def test_a_prefill_that_fails_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pipeline(save(tmp_path), 2)
    monkeypatch.setattr(run.stages[1], "_compute", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        run.prefill("r", prompt(20), lease_s=60)
    assert [stage.pool.bytes_in_use for stage in run.stages] == [0, 0]


def test_where_one_stage_has_no_room_no_stage_holds_anything(tmp_path: Path) -> None:
    run = pipeline(save(tmp_path), 2, kv_budget_bytes=40 * 256)
    assert run.stages[1].pool.reserve("other", 20, lease_s=60) is None
    refused = run.prefill("r", prompt(24), lease_s=60)
    assert isinstance(refused, Infeasible)
    assert refused.reason.startswith("stage 1: kv_space: 24 tokens need 6,144 bytes")
    assert run.stages[0].pool.bytes_in_use == 0
    run.abort("other")
    assert isinstance(run.prefill("r", prompt(24), lease_s=60), PrefillResult)


def test_a_lease_that_ends_during_prefill_ends_the_prefill(tmp_path: Path) -> None:
    run = pipeline(save(tmp_path), 2)
    with pytest.raises(LeaseEnded):
        run.prefill("r", prompt(20), lease_s=1e-9)
    assert [stage.pool.bytes_in_use for stage in run.stages] == [0, 0]
