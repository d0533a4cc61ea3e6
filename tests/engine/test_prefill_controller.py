"""The controller: who goes first, who is refused and why, and what it gives back."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.prefill.bubbles import TrainingPattern
from engine.prefill.controller import Controller
from engine.prefill.index import Fleet
from engine.prefill.latency import LatencyModel
from engine.prefill.placement import Cache, Placement, PlacementQuery, Refusal, Settings

# One GPU that trains in the first half of 100 ms; 1 ms for every ten tokens: 490 fit into a bubble.
PATTERN = TrainingPattern(period_ms=100.0, busy=((((0.0, 50.0),),),), dc_of_stage=(0,))
MODEL = LatencyModel(a_ms=0.0, b_ms=0.1, c_ms=0.0)


def placing(pattern: TrainingPattern = PATTERN, cache: Cache | None = None, **changes: Any) -> Controller:
    given = Settings(**{"guard_ms": 1.0, "queue": 8, **changes})
    return Controller(Fleet(pattern=pattern, phase_ms=(0.0,)), MODEL, settings=given, cache=cache)


def offer(to: Controller, name: str, tokens: int, at_ms: float = 0.0, **changes: Any) -> Placement | Refusal:
    return to.offer(PlacementQuery(id=name, tokens=tokens, arrival_ms=at_ms, **changes))


def accepted(to: Controller, name: str, tokens: int, at_ms: float = 0.0, **changes: Any) -> Placement:
    answer = offer(to, name, tokens, at_ms, **changes)
    assert isinstance(answer, Placement)
    return answer


def refused(to: Controller, name: str, tokens: int, at_ms: float = 0.0, **changes: Any) -> Refusal:
    answer = offer(to, name, tokens, at_ms, **changes)
    assert isinstance(answer, Refusal)
    return answer


def plan(of: Controller) -> list[tuple[int | str, float]]:
    return [(p.request.id, p.start_ms) for p in of.waiting]


def test_first_come_first_served_even_if_a_later_one_would_fit_before() -> None:
    to = placing()
    accepted(to, "a", 300)
    accepted(to, "b", 300)
    accepted(to, "c", 100)
    assert plan(to) == [("a", 50.0), ("b", 150.0), ("c", 180.0)]


def test_longest_fit_fills_what_is_left_and_goes_before_the_shorter() -> None:
    to = placing(order="longest_fit")
    accepted(to, "a", 300)
    accepted(to, "b", 300)
    accepted(to, "c", 100)
    assert plan(to) == [("a", 50.0), ("c", 80.0), ("b", 150.0)]
    accepted(to, "d", 490)
    assert plan(to) == [("d", 50.0), ("a", 150.0), ("c", 180.0), ("b", 250.0)]


def test_who_has_waited_long_is_overtaken_no_more() -> None:
    to = placing(order="longest_fit", queue=50)
    accepted(to, "short", 200)
    starts = []
    for i in range(18):
        accepted(to, f"long {i}", 490, at_ms=i * 40.0)
        starts.append(dict(plan(to))["short"])
    assert starts[10] > starts[0]  # at 400 ms
    assert starts[11:] == [starts[10]] * 7


def test_higher_priorities_go_first_and_deadlines_hold() -> None:
    to = placing()
    accepted(to, "a", 300)
    accepted(to, "urgent", 490, priority=1)
    assert plan(to) == [("urgent", 50.0), ("a", 150.0)]
    to = placing()
    accepted(to, "a", 300, deadline_ms=100.0)
    later = accepted(to, "urgent", 490, priority=1)
    assert plan(to) == [("a", 50.0), ("urgent", 150.0)]  # before it, "a" would be late
    assert later.queue_ms == 150


@settings(max_examples=40, deadline=None)
@given(
    requests=st.lists(
        st.tuples(st.integers(1, 600), st.floats(0, 90), st.integers(-1, 1), st.floats(20, 400)),
        min_size=1,
        max_size=25,
    ),
    order=st.sampled_from(["fifo", "longest_fit"]),
    chunk=st.sampled_from([None, 50]),
    reserve_ms=st.sampled_from([0.0, 150.0]),
    budget=st.sampled_from([math.inf, 900.0]),
)
def test_a_quote_is_what_the_offer_gives_and_changes_nothing(
    requests: list[tuple[int, float, int, float]],
    order: Any,
    chunk: int | None,
    reserve_ms: float,
    budget: float,
) -> None:
    cache = Cache(token_bytes=1.0, bytes_per_s=1e5, budget_bytes=budget)
    quoting, plain = (
        placing(cache=cache, order=order, chunk_tokens=chunk, queue=3, reserve_ms=reserve_ms)
        for _ in range(2)
    )
    at_ms = 0.0
    for number, (tokens, gap_ms, priority, within_ms) in enumerate(requests):
        at_ms += gap_ms
        query = PlacementQuery(
            id=number, tokens=tokens, arrival_ms=at_ms, priority=priority, deadline_ms=at_ms + within_ms
        )
        quotes, answer = [quoting.quote(query) for _ in range(2)], quoting.offer(query)
        for one in (*quotes, plain.offer(query)):
            assert type(one) is type(answer)
            if isinstance(one, Placement) and isinstance(answer, Placement):
                assert one.rows.tolist() == answer.rows.tolist()
                assert one.kv_done_ms == answer.kv_done_ms
            else:
                assert one == answer
        assert plan(quoting) == plan(plain)


def test_what_cannot_run_is_refused_with_its_reason() -> None:
    to = placing(queue=1)
    assert refused(to, "x", 491) == Refusal(reason="too_long", retry_after_ms=None)
    accepted(to, "a", 490)
    assert refused(to, "b", 10) == Refusal(reason="queue_full", retry_after_ms=50.0)
    to = placing(queue=0)
    assert refused(to, "a", 10) == Refusal(reason="no_bubble", retry_after_ms=50.0)
    assert accepted(to, "a", 10, at_ms=50.0).queue_ms == 0
    to.paused = True
    assert refused(to, "b", 10, at_ms=60.0).reason == "training_paused"


def test_beyond_the_queue_a_place_is_reserved_that_nobody_takes() -> None:
    to = placing(queue=1, reserve_ms=200.0)
    accepted(to, "a", 490)
    assert accepted(to, "b", 490).start_ms == 150.0
    assert plan(to) == [("a", 50.0)]
    assert refused(to, "c", 490) == Refusal(reason="queue_full", retry_after_ms=50.0)  # at 250 ms
    accepted(to, "urgent", 100, at_ms=60.0, priority=1)  # "a" has begun: there is room in the queue
    assert [p.start_ms for p in to.reserved] == [150.0]
    assert plan(to) == [("urgent", 250.0)]
    to.advance(150.0)
    assert not to.reserved


def test_a_reserved_place_moves_with_training_and_stays_reserved() -> None:
    to = placing(queue=1, reserve_ms=500.0)
    accepted(to, "a", 300)
    reserved = accepted(to, "b", 300)
    moved = to.training_moved(0, [[(70.0, 100.0)]], 120.0)
    assert {str(p.request.id): p.start_ms for p in moved.moved} == {"a": 170.0, "b": 270.0}
    assert [p.request.id for p in to.reserved] == ["b"]
    to.cancel(reserved)  # an old plan holds nothing
    assert len(to.reserved) == 1
    to.cancel(to.reserved[0])
    assert (to.reserved, len(to.waiting)) == ((), 1)


def test_the_objective_counts_queue_prefill_and_transfer() -> None:
    cache = Cache(token_bytes=1e3, bytes_per_s=1e6)  # 1 ms a token
    to = placing(cache=cache, ttft_slo_ms=160.0)
    placement = accepted(to, "a", 100)
    assert placement.ttft_ms == 50 + 10 + 100
    late = refused(to, "b", 100)
    assert late == Refusal(reason="ttft", retry_after_ms=10.0)
    hopeless = refused(to, "c", 300)
    assert hopeless == Refusal(reason="ttft", retry_after_ms=None)


def test_caches_stay_within_their_budget() -> None:
    cache = Cache(token_bytes=1e3, bytes_per_s=1e6, budget_bytes=250e3)
    to = placing(cache=cache)
    first = accepted(to, "a", 200)  # its cache leaves from 70 to 270 ms
    refusal = refused(to, "b", 100)
    assert refusal == Refusal(reason="kv_space", retry_after_ms=first.kv_done_ms)
    accepted(to, "c", 50)
    assert refused(to, "d", 251) == Refusal(reason="kv_space", retry_after_ms=None)


def test_data_centres_are_kept_apart() -> None:
    pattern = TrainingPattern(period_ms=100.0, busy=((((0.0, 50.0),), ((50.0, 100.0),)),), dc_of_stage=(3, 7))
    to = placing(pattern)
    assert accepted(to, "near", 100, dc=3).start_ms == 50
    assert accepted(to, "far", 100, dc=7).start_ms == 0  # who waits elsewhere is not before it
    assert accepted(to, "any", 100).start_ms == 60  # but who came first among those that it competes with
    assert refused(to, "nowhere", 100, dc=5).reason == "no_bubble"


def test_chunks_take_what_bubbles_leave() -> None:
    to = placing(chunk_tokens=100)
    placement = accepted(to, "a", 1200)
    assert placement.rows[:, 1:].tolist() == [[50, 99, 490], [150, 199, 490], [250, 272, 220]]
    assert accepted(to, "b", 150).start_ms == 272


def test_a_cancelled_request_gives_its_place_back() -> None:
    to = placing()
    first = accepted(to, "a", 490)
    accepted(to, "b", 490)
    to.cancel(first)
    assert plan(to) == [("b", 150.0)]
    to = placing(order="longest_fit")
    first = accepted(to, "a", 490)
    to.cancel(first)
    assert accepted(to, "b", 490).start_ms == 50
    to.cancel(first)
    assert accepted(to, "c", 490).start_ms == 150, "what b holds now is not given away"


def test_the_clock_goes_forward() -> None:
    to = placing()
    to.advance(10.0)
    with pytest.raises(ValueError, match="forward"):
        offer(to, "a", 10, at_ms=5.0)
    assert to.advance(math.inf) == []


def test_chunks_that_no_bubble_holds_make_no_difference() -> None:
    to = placing(chunk_tokens=5000)
    assert refused(to, "x", 491) == Refusal(reason="too_long", retry_after_ms=None)
    accepted(to, "a", 490)


def test_what_did_not_run_is_placed_anew_behind_what_did() -> None:
    to = placing(chunk_tokens=100)
    first = accepted(to, "a", 700)  # 490 tokens in one bubble, the rest in the next
    assert [row[3] for row in first.rows] == [490, 210]
    to.advance(99.5)  # the first chunk was late, and only 200 of its tokens ran
    again = to.resume(first, 200, not_before_ms=0.0)
    assert again is not None
    assert [(row[1], row[3]) for row in again.rows] == [(99.5, 200), (150.0, 490), (250.0, 10)]
    # what the first plan held in the second bubble is free for others where the new one leaves room
    assert accepted(to, "b", 480, 99.5).rows[0, 1] == 251.0


def test_what_has_no_place_any_more_holds_none() -> None:
    to = placing()
    first = accepted(to, "a", 300)
    to.advance(60.0)
    nothing = TrainingPattern(period_ms=100.0, busy=((((0.0, 99.5),),),), dc_of_stage=(0,))
    moved = to.learned(nothing, [1.0], [()], 100.0)
    assert moved.lost == (), "it has begun"
    assert to.resume(first, 0, not_before_ms=0.0) is None
    assert not to.waiting


def test_a_pattern_that_was_learned_moves_what_waits() -> None:
    to = placing()
    accepted(to, "a", 300)
    later = TrainingPattern(period_ms=120.0, busy=((((0.0, 70.0),),),), dc_of_stage=(0,))
    moved = to.learned(later, [5.0], [((70.0, 120.0),)], 120.0)
    assert [p.start_ms for p in moved.moved] == [70.0]
    assert to.period_ms == 120.0
    assert to.longest_tokens == 450
    assert accepted(to, "b", 300).start_ms == 190.0
