"""Clocks of nodes: what heartbeats say of them, and spans that are moved to the common clock."""

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.events import EXAMPLES
from tests.site.telemetry import take_in
from tests.site.test_ingest import events
from webapp.inventory.models import Node
from webapp.inventory.selectors.nodes import clock_offset_s
from webapp.jobs.allocate import allocate
from webapp.live.models import SpanBatch


def told(world: Any, clock: Any) -> Node:
    beat = {"kind": "heartbeat", **EXAMPLES["heartbeat"], "clock": clock}
    take_in([("east-1", f"{int(time.time() * 1e3)}-0", beat)])
    return Node.objects.get(name="east-1")


def test_heartbeats_tell_the_offset(world: Any) -> None:
    node = told(world, {"offset_ms": 12.5, "rtt_ms": 0.8})
    assert (node.clock_offset_ms, node.clock_rtt_ms, node.clock_is_off) == (12.5, 0.8, True)
    assert clock_offset_s(node.clock_offset_ms, node.clock_rtt_ms) == pytest.approx(0.0125)
    page = world.client("viewer").get(f"/nodes/{node.pk}/").content.decode()
    assert "more than 5 ms off" in page
    assert "+12.50" in world.client("viewer").get("/nodes/").content.decode()


IMPOSSIBLE = (
    None,
    3,
    {},
    {"offset_ms": "1", "rtt_ms": 1},
    {"offset_ms": float("nan"), "rtt_ms": 1},
    {"offset_ms": 1.0, "rtt_ms": -1},
    {"offset_ms": 1e300, "rtt_ms": 1},
)


@pytest.mark.parametrize("clock", IMPOSSIBLE)
def test_what_cannot_be_true_is_not_kept(world: Any, clock: Any) -> None:
    assert told(world, clock).clock_offset_ms is None


@given(st.floats(-1e6, 1e6, allow_subnormal=False).map(lambda ms: round(ms, 6)), st.floats(0, 1e3))
def test_a_difference_within_its_own_error_is_none(offset_ms: float, rtt_ms: float) -> None:
    offset = clock_offset_s(offset_ms, rtt_ms)
    assert offset in (0.0, offset_ms / 1e3)
    assert (offset == 0.0) == (abs(offset_ms) <= rtt_ms / 2 or offset_ms == 0)


def test_spans_of_a_fast_clock_are_moved_back(world: Any) -> None:
    """East's clock is 40 ms ahead: moved back, its spans are as if it had been right."""
    world.hear()
    right, wrong = world.launch(), None
    assert allocate(right)
    take_in(events(right, 2))
    spans = {(b.rank, b.iteration): (b.start, b.end, b.spans) for b in SpanBatch.objects.filter(run=right)}
    SpanBatch.objects.all().delete()
    type(right).objects.filter(pk=right.pk).update(epoch=None)
    wrong = events(right, 2)
    for node, _, event in wrong:
        if node == "east-1" and event["kind"] == "spans":
            event["start"] += 0.04
            event["end"] += 0.04
            for span in event["spans"]:
                for name in ("start", "end", "arrives"):
                    if name in span:
                        span[name] += 0.04
    told(world, {"offset_ms": 40.0, "rtt_ms": 0.2})
    take_in(wrong)
    moved = {(b.rank, b.iteration): (b.start, b.end, b.spans) for b in SpanBatch.objects.filter(run=right)}
    assert moved.keys() == spans.keys()
    for key, (start, end, codes) in spans.items():
        assert moved[key][0] == pytest.approx(start, abs=1e-6)
        assert moved[key][1] == pytest.approx(end, abs=1e-6)
        for code, other in zip(codes, moved[key][2], strict=True):
            numbers = [(a, b) for a, b in zip(code, other, strict=True) if isinstance(a, float)]
            assert all(b == pytest.approx(a, abs=2e-3) for a, b in numbers)
