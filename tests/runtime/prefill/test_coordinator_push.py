"""A request whose cache goes to a receiver: answered when all stages have sent it, or failed, never both."""

from typing import Any

import pytest

from engine.prefill.handover import DecodeReceiver
from engine.serve.coordinator import LEASE_S
from engine.serve.prefill_wire import CachePushed, ChunkLate, Drop, OpsChanged, PushCache
from tests.runtime.prefill.test_coordinator import CACHE, Coordinator, second

TO = DecodeReceiver(host="192.0.2.1", port=7, request="theirs", key="ab" * 32)


@pytest.fixture
def pushing(tmp_path: Any) -> Coordinator:
    """Two GPUs that hold a stage each; both have run their chunk, and are to send their caches."""
    coordinator = Coordinator(tmp_path, cells=2, pp_degree=2)
    coordinator.ask(hand_over=True, decode=TO)
    coordinator.turn(451.0)
    first, last = *coordinator.chunks(0), *coordinator.chunks(1)
    coordinator.ran(first, cache=CACHE)
    coordinator.ran(last, token=5, cache=second(), gpu=1)
    return coordinator


def said(coordinator: Coordinator, gpu: int, error: str = "") -> None:
    (order,) = orders(coordinator, gpu)
    coordinator.service.handle(gpu, CachePushed(request=order.request, error=error))


def orders(coordinator: Coordinator, gpu: int) -> list[PushCache]:
    return [message for message in coordinator.ranks[gpu].sent if isinstance(message, PushCache)]


def fate(coordinator: Coordinator) -> Any:
    coordinator.service.account(coordinator.gateway, ["a"])
    return coordinator.gateway.last()


def test_each_stage_sends_its_part_and_the_answer_waits_for_all(pushing: Coordinator) -> None:
    assert [orders(pushing, gpu)[0].stage for gpu in (0, 1)] == [0, 1]
    assert {(order.stages, order.token, order.to) for gpu in (0, 1) for order in orders(pushing, gpu)} == {
        (2, 5, TO)
    }
    said(pushing, 1)
    said(pushing, 1)  # said twice is said once
    assert pushing.gateway.kinds() == ["accepted"]
    pushing.now_ms += 30
    said(pushing, 0)
    assert pushing.gateway.kinds() == ["accepted", "token", "done"]
    done = pushing.gateway.last()
    assert done.handed_over.model_dump() == {
        "remote_request_id": "theirs",
        "remote_tokens": 40,
        "stages": 2,
        "next_token": 5,
    }
    assert done.kv_transfer_params is None
    assert done.ttft_ms == pytest.approx(pushing.now_ms - 450.0), "the transfer counts in it"
    assert fate(pushing).is_delivered


@pytest.mark.parametrize("gpu", [0, 1])
def test_a_receiver_that_refuses_fails_the_request_and_frees_the_rest(pushing: Coordinator, gpu: int) -> None:
    said(pushing, gpu, "no room")
    failed = pushing.gateway.last()
    assert (failed.kind, failed.reason) == ("failed", "decode")
    assert failed.message == "the receiver did not take the KV cache: no room"
    assert all(isinstance(rank.last(), Drop) for rank in pushing.ranks)
    said(pushing, 1 - gpu)
    assert pushing.gateway.kinds() == ["accepted", "failed"]
    assert not fate(pushing).is_delivered, "nothing is charged"


def test_a_receiver_that_takes_too_long_fails_the_request(pushing: Coordinator) -> None:
    pushing.turn(pushing.now_ms + LEASE_S * 1e3 - 1)
    assert pushing.gateway.kinds() == ["accepted"]
    pushing.turn(pushing.now_ms + 2)
    assert "it took too long" in pushing.gateway.last().message
    assert not fate(pushing).is_delivered


def test_training_that_moves_meanwhile_changes_nothing(pushing: Coordinator) -> None:
    pushing.service.handle(0, OpsChanged(since=5, ops=1))
    (order,) = orders(pushing, 0)
    pushing.service.handle(0, ChunkLate(request=order.request, done=0, why="gone"))
    before = len(pushing.chunks(0))
    for iteration in range(5, 9):
        pushing.trains(iteration)
        pushing.turn(pushing.now_ms + 1)
    assert len(pushing.chunks(0)) == before
    said(pushing, 0)
    said(pushing, 1)
    assert pushing.gateway.last().kind == "done"


@pytest.mark.parametrize("why", ["withdrawn", "rank"])
def test_what_ends_meanwhile_is_freed(pushing: Coordinator, why: str) -> None:
    if why == "withdrawn":
        pushing.service.withdraw(pushing.gateway, "a")
    else:
        pushing.service.detach(1, pushing.ranks[1])
    assert isinstance(pushing.rank.last(), Drop)
    assert pushing.gateway.last().kind == "failed"
    assert not fate(pushing).is_delivered
