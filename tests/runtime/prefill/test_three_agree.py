"""Forecast, quote and live service say one thing of one trace on the same bubbles.

There are two forecasts: a replay, as its pages compute it, and that of the supply page and the review. The
quote is the coordinator's, asked before each request.
The live service is the coordinator over a rank that trains as planned and runs each chunk in its time.
"""

from heapq import heappop, heappush
from itertools import count
from typing import Any

import numpy as np
import pytest

from engine.inputs import parse
from engine.prefill.bubbles import TrainingPattern
from engine.prefill.in_run import LAN_BYTES_PER_S, WAKING_MS, hand_over, with_waking
from engine.prefill.index import Fleet
from engine.prefill.latency import LatencyModel
from engine.prefill.placement import Cache, Settings
from engine.prefill.replay import ReplayResult, replay
from engine.prefill.request import ReplayRequest
from engine.prefill.supply import Met, Stream, arrivals, met
from engine.prefill.trace import Trace
from engine.serve.prefill_wire import RunChunk
from tests.runtime.prefill.test_coordinator import BUSY_MS, PERIOD_MS, SHAPE, Coordinator

BEGIN_MS = 500.0  # iterations that the coordinator has seen by then
REQUESTS = 120
GUARD_MS, QUEUE, CHUNK = 1.0, 4, 16


def trace(gap_ms: float, seed: int = 3) -> Trace:
    """Prompts of 8 to 70 tokens, at random times."""
    random = np.random.default_rng(seed)
    arrivals = np.cumsum(random.exponential(gap_ms, REQUESTS))
    return Trace(arrival_ms=arrivals - arrivals[0], tokens=random.integers(8, 71, REQUESTS))


def forecast(of: Trace) -> tuple[ReplayResult, dict[int, float]]:
    """The replay, and the time to first token of each request that it accepts."""
    document = {
        "bubbles": {"busy": [[[[0.0, BUSY_MS]]]], "period_ms": PERIOD_MS},
        # A coordinator counts on threads that wake late.
        "profile": {"a_ms": 1.0 + WAKING_MS, "b_ms": 0.5, "c_ms": 0.0},
        "kv_bytes_per_token": SHAPE.token_bytes,
        "lan_gbps": LAN_BYTES_PER_S * 8 / 1e9,
        "trace": "azure-code",
        "warm_iterations": 0,
        "controller": {"guard_ms": GUARD_MS, "queue": QUEUE, "chunk_tokens": CHUNK},
    }
    ttft_ms: dict[int, float] = {}

    def note(line: dict[str, Any]) -> None:
        ttft_ms[line["request"]] = line["kv_done_ms"] - line["arrival_ms"]

    result = replay(parse(ReplayRequest, document), note, of)
    assert isinstance(result, ReplayResult)
    return result, ttft_ms


class Live:
    """Plays a trace at a coordinator: training as planned, chunks in time, a quote before each request."""

    def __init__(self, tmp_path: Any) -> None:
        self.coordinator = Coordinator(tmp_path, guard_ms=GUARD_MS, queue=QUEUE, chunk_tokens=CHUNK)
        self.quoted: dict[int, float] = {}
        self.promised: dict[int, float] = {}
        self.delivered: dict[int, float] = {}
        self._events: list[tuple[float, int, str, Any]] = []
        self._order = count()
        self._seen = self._sent = 0
        self._wakes_ms = 0.0

    def play(self, of: Trace) -> None:
        for number, (at_ms, tokens) in enumerate(zip(of.arrival_ms, of.tokens, strict=True)):
            self._at(BEGIN_MS + float(at_ms), "arrival", (number, int(tokens)))
        last_ms = BEGIN_MS + float(of.arrival_ms[-1]) + 20 * PERIOD_MS
        for iteration in range(5, int(last_ms / PERIOD_MS)):
            self._at(iteration * PERIOD_MS + BUSY_MS, "trained", iteration)
        while self._events and self._events[0][0] < last_ms:
            at_ms, _, kind, what = heappop(self._events)
            self.coordinator.now_ms = max(self.coordinator.now_ms, at_ms)
            getattr(self, f"_{kind}")(what)
            self._turn()

    def _at(self, at_ms: float, kind: str, what: Any) -> None:
        heappush(self._events, (at_ms, next(self._order), kind, what))

    def _trained(self, iteration: int) -> None:
        self.coordinator.trains(iteration)

    def _arrival(self, request: tuple[int, int]) -> None:
        number, tokens = request
        self.coordinator.ask(f"q{number}", tokens=tokens, quote=True)
        self._note(self.quoted)
        self.coordinator.ask(str(number), tokens=tokens)
        self._note(self.promised)

    def _note(self, into: dict[int, float]) -> None:
        message: Any = self.coordinator.gateway.last()
        if message.kind == "accepted":
            into[int(message.request.lstrip("q"))] = message.ttft_ms

    def _ran(self, chunk: RunChunk) -> None:
        self.coordinator.ran(chunk, token=65 if chunk.final else None)
        for message in self.coordinator.gateway.sent[self._seen :]:
            if message.kind == "done":  # type: ignore[attr-defined]
                self.delivered[int(message.request)] = message.ttft_ms  # type: ignore[attr-defined]
        self._seen = len(self.coordinator.gateway.sent)

    def _turn(self) -> None:
        again_s = self.coordinator.service.turn()
        for message in self.coordinator.rank.sent[self._sent :]:
            if isinstance(message, RunChunk):
                self._at(message.begin_s * 1e3 + 1.0 + 0.5 * message.tokens, "ran", message)
        self._sent = len(self.coordinator.rank.sent)
        if again_s is not None and self._wakes_ms <= self.coordinator.now_ms:
            self._wakes_ms = self.coordinator.now_ms + max(0.25, again_s * 1e3)
            self._at(self._wakes_ms, "woken", None)

    def _woken(self, _: None) -> None:
        pass


@pytest.mark.parametrize("gap_ms", [90.0, 35.0], ids=["light", "over the supply"])
def test_forecast_quote_and_live_service_agree(tmp_path: Any, gap_ms: float) -> None:
    requests = trace(gap_ms)
    result, foretold = forecast(requests)
    live = Live(tmp_path)
    live.play(requests)
    assert live.quoted == live.promised, "a quote is what the request then gets"
    assert set(live.delivered) == set(live.promised), "what was accepted was delivered"
    assert max(live.delivered[n] - live.promised[n] for n in live.promised) <= 1e-6, "and in time"
    both = set(foretold) & set(live.promised)
    assert len(set(foretold) ^ set(live.promised)) <= 0.02 * REQUESTS
    assert max(abs(foretold[n] - live.promised[n]) for n in both) < PERIOD_MS
    off_ms = [abs(foretold[n] - live.promised[n]) for n in both]
    assert np.median(off_ms) < 1.0
    if gap_ms < 50:
        assert result.refused["queue_full"] > 0.05 * REQUESTS, "it asks for more than there is"


SHORT, LONG = 16, 60  # tokens of the prompts of two tenants


def supply_page(streams: list[Stream], pp_degree: int = 1, requests: int = REQUESTS) -> list[Met]:
    """What the supply page and the review foretell of GPUs of `pp_degree` cells."""
    pattern = TrainingPattern(period_ms=PERIOD_MS, busy=((((0.0, BUSY_MS),),),) * pp_degree, dc_of_stage=(0,))
    return met(
        Fleet(pattern=pattern, phase_ms=(0.0,), pp_degree=pp_degree, cells_of_pattern=pp_degree),
        with_waking(LatencyModel(a_ms=1.0, b_ms=0.5, c_ms=0.0), pp_degree),
        settings=Settings(guard_ms=GUARD_MS, queue=QUEUE, chunk_tokens=CHUNK),
        cache=Cache(token_bytes=SHAPE.token_bytes * pp_degree, bytes_per_s=LAN_BYTES_PER_S),
        hop=hand_over(4),  # bytes of the hidden states of a token in the coordinator of these tests
        streams=streams,
        requests=requests,
    )


def tenants(gap_ms: float) -> list[Stream]:
    """Two that send a prompt every `gap_ms` together, as many short ones as long ones."""
    return [Stream(tokens=t, tokens_per_min=60_000 / (2 * gap_ms) * t) for t in (SHORT, LONG)]


@pytest.mark.parametrize("gap_ms", [90.0, 35.0], ids=["light", "over the supply"])
def test_the_supply_page_foretells_what_is_then_promised(tmp_path: Any, gap_ms: float) -> None:
    streams = tenants(gap_ms)
    foretold = supply_page(streams)
    at_ms, kinds = map(np.array, zip(*arrivals(streams, REQUESTS, 0), strict=True))
    live = Live(tmp_path)
    live.play(Trace(arrival_ms=at_ms, tokens=np.array([SHORT, LONG])[kinds]))
    assert live.quoted == live.promised
    for kind, tenant in enumerate(foretold):
        promised = [ttft for number, ttft in live.promised.items() if kinds[number] == kind]
        refused = np.count_nonzero(kinds == kind) - len(promised)
        assert abs(refused - tenant.refused) <= 0.02 * REQUESTS
        assert np.median(promised) == pytest.approx(np.median(tenant.ttft_ms), abs=2.0)
        assert np.quantile(promised, 0.95) == pytest.approx(np.quantile(tenant.ttft_ms, 0.95), rel=0.1)
    if gap_ms < 50:
        assert sum(tenant.refused for tenant in foretold) > 0.05 * REQUESTS


def test_a_forecast_counts_the_hand_overs_of_a_pipeline_as_a_quote_does(tmp_path: Any) -> None:
    """Prompts so rare that none meets another: each alone takes what the coordinator says of it."""
    streams, requests = tenants(2e6), 12
    foretold = supply_page(streams, pp_degree=2, requests=requests)
    coordinator = Coordinator(
        tmp_path, cells=2, pp_degree=2, guard_ms=GUARD_MS, queue=QUEUE, chunk_tokens=CHUNK
    )
    quoted: list[list[float]] = [[], []]
    for number, (at_ms, kind) in enumerate(arrivals(streams, requests, 0)):
        now_ms = BEGIN_MS + at_ms
        last = int(now_ms // PERIOD_MS)
        for iteration in range(last - 4, last):
            coordinator.trains(iteration)
        if now_ms - last * PERIOD_MS > BUSY_MS:
            coordinator.trains(last)
        coordinator.now_ms = now_ms
        coordinator.ask(f"q{number}", tokens=streams[kind].tokens, quote=True)
        quoted[kind].append(coordinator.gateway.last().ttft_ms)
    for kind, tenant in enumerate(foretold):
        assert tenant.refused == 0
        assert quoted[kind] == pytest.approx(tenant.ttft_ms.tolist(), abs=0.01)
    without = with_waking(LatencyModel(a_ms=1.0, b_ms=0.5, c_ms=0.0), 2).ms(SHORT)
    assert min(foretold[0].ttft_ms) > without + hand_over(4).ms(SHORT) - 1e-6
