"""A quote is what the same request would get, transfer over the WAN included, and leaves nothing behind."""

from typing import Any

import pytest

from engine.prefill.handover import KvLink
from tests.runtime.prefill.test_coordinator import SHAPE, Coordinator


@pytest.fixture
def coordinator(tmp_path: Any) -> Coordinator:
    return Coordinator(tmp_path)


def test_a_quote_is_what_the_request_then_gets(coordinator: Coordinator) -> None:
    coordinator.ask("q", quote=True)
    coordinator.ask("a")
    quoted, accepted = coordinator.gateway.sent
    assert quoted.model_dump(exclude={"request"}) == accepted.model_dump(exclude={"request"})  # type: ignore[attr-defined]


def test_a_quote_keeps_nothing_and_counts_for_nothing(coordinator: Coordinator) -> None:
    for _ in range(100):
        coordinator.ask("q", quote=True)
        coordinator.ask("late", quote=True, ttft_objective_ms=1.0)
    assert set(coordinator.gateway.kinds()) == {"accepted", "refused"}
    assert coordinator.turn(520.0) == []
    assert coordinator.service.waiting == 0
    assert coordinator.service.counts.accepted == 0
    assert sum(coordinator.service.counts.refused.values()) == 0
    coordinator.service.account(coordinator.gateway, ["q"])
    assert coordinator.gateway.last().fate == "unknown"


def test_the_transfer_over_the_link_counts(coordinator: Coordinator) -> None:
    link = KvLink(latency_ms=30.0, bytes_per_s=SHAPE.token_bytes * 1e3)  # a token in a millisecond
    coordinator.ask("near", quote=True)
    coordinator.ask("far", quote=True, link=link)
    near, far = (message.ttft_ms for message in coordinator.gateway.sent)  # type: ignore[attr-defined]
    assert far - near == pytest.approx(30 + 40, rel=1e-3)
    coordinator.ask("too-far", quote=True, link=link, ttft_objective_ms=(near + far) / 2)
    assert coordinator.gateway.last().kind == "refused"
    coordinator.ask("near-enough", quote=True, ttft_objective_ms=(near + far) / 2)
    assert coordinator.gateway.last().kind == "accepted"
