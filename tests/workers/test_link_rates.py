"""Measuring a link with the transport that trains over it: round trip, rates, and what goes wrong."""

import queue
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InputError
from engine.run import link_rates
from engine.run.link_rates import WARM_UP, emulated_link, steady_rate
from engine.transport import LinkShape, Peer, TransportError
from tests.ports import free_port
from tests.waiting import LIMIT_S
from workers.rates import LinkMeter

SECRET = "s" * 32
EMULATED = {"latency_ms": 20.0, "bandwidth_gbps": 0.05, "window_bytes": 100_000.0}  # 0.02 Gbit/s a connection


def trial(*, listen_secret: str = SECRET, listener: bool = True, patience_s: float = LIMIT_S) -> Any:
    events: queue.Queue[Any] = queue.Queue()
    ends = [LinkMeter(host="127.0.0.1", publish=events.put) for _ in range(2)]
    port = free_port()
    shared: dict[str, Any] = {
        "port": port,
        "counts": [1, 2, 4, 8],
        "emulated": EMULATED,
        "seconds": 0.8,
        "patience_s": patience_s,
    }
    if listener:
        ends[0].start("t", listen_secret, peer=None, **shared)
    ends[1].start("t", SECRET, peer={"host": "127.0.0.1", "port": port}, **shared)
    assert ends[1].start("t", SECRET, peer={"host": "127.0.0.1", "port": port}, **shared) == "known already"
    result = events.get(timeout=2 * LIMIT_S)
    # A listener that nobody comes to waits on, and logs: not in the next test, or after the last one.
    for thread in threading.enumerate():
        if thread.name == "link-rates":
            thread.join(2 * LIMIT_S)
            assert not thread.is_alive()
    return result


def test_an_emulated_link_is_measured() -> None:
    """What it has to be is shown below: here a machine that is busy has its part in it."""
    result = trial()
    assert result.error == ""
    assert result.rtt_ms >= 40, "nothing arrives before it is due"
    rates = {rate.connections: rate.gbps for rate in result.rates}
    assert [*rates] == [1, 2, 4, 8][: len(rates)]
    assert len(rates) >= 2
    assert all(rate > 0 for rate in rates.values())


class Wire:
    """In place of an endpoint: what goes over it takes no time."""

    def __init__(self, *, rank: int, **_: Any) -> None: ...
    def connect(self, peers: list[Peer], patience_s: float) -> None:
        (self.peer,) = peers

    def send(self, *_: Any) -> None: ...
    def close(self, linger_s: float) -> None: ...


def test_it_ends_where_more_connections_give_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = emulated_link(**EMULATED)
    assert (shape.one_way_delay_s, shape.cap_bytes_per_s) == (0.02, pytest.approx(6.25e6))
    shapes: list[LinkShape] = []

    def blast(wire: Wire, *_: Any) -> float:
        """What a connection's window and the cap let through."""
        shapes.append(wire.peer.shape)
        return min(shapes[-1].connections * 2.5e6, 6.25e6)

    monkeypatch.setattr(link_rates, "Endpoint", Wire)
    monkeypatch.setattr(link_rates, "_ping", lambda _wire, number, _s: [0.04, 0.04, 0.7][number % 3])
    monkeypatch.setattr(link_rates, "_blast", blast)
    result = link_rates.measure(
        "h", ("h", 1), secret=SECRET, trial="t", counts=[1, 2, 4, 8, 16], shape=shape, seconds=1, patience_s=1
    )
    assert result.rtt_ms == pytest.approx(40)
    assert [rate.connections for rate in result.rates] == [1, 2, 4, 8]
    assert [rate.gbps for rate in result.rates] == pytest.approx([0.02, 0.04, 0.05, 0.05])
    assert {(s.one_way_delay_s, s.window_bytes) for s in shapes} == {(0.02, 100_000)}


def test_nobody_listens() -> None:
    result = trial(listener=False, patience_s=1.0)
    assert "cannot reach" in result.error
    assert result.rates == ()


def test_another_secret_is_refused() -> None:
    assert trial(listen_secret="x" * 32, patience_s=5.0).error


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("secret", {"secret": "short"}),
        ("counts", {"counts": []}),
        ("counts", {"counts": [2, 1]}),
        ("counts", {"counts": [1000]}),
        ("one_way_delay_s", {"emulated": {**EMULATED, "latency_ms": -1}}),
    ],
)
def test_a_bad_order_names_its_field(field: str, changes: dict[str, Any]) -> None:
    order: dict[str, Any] = {
        "trial": "t",
        "secret": SECRET,
        "port": 1,
        "peer": None,
        "counts": [1],
        "emulated": EMULATED,
        "seconds": 1.0,
        "patience_s": 1.0,
    }
    with pytest.raises(InputError) as caught:
        LinkMeter(host="127.0.0.1", publish=lambda _: None).start(**{**order, **changes})
    assert caught.value.field == field


@given(st.integers(5, 40), st.floats(0.01, 10), st.integers(1, 10_000))
def test_a_steady_stream_has_its_rate_whatever_came_first(count: int, gap_s: float, nbytes: int) -> None:
    arrivals = [(i * gap_s, nbytes) for i in range(count)]
    assert steady_rate(arrivals) == pytest.approx(nbytes / gap_s)
    slow_start = [(-gap_s * WARM_UP * count / 2, nbytes), *arrivals]
    assert steady_rate(slow_start) == pytest.approx(nbytes / gap_s)


def test_one_message_tells_no_rate() -> None:
    with pytest.raises(TransportError):
        steady_rate([(1.0, 100)])
