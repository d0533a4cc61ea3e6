"""A model over the prefill workers of several ranks: each stage has its own bubbles and hands states on."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from engine.control.errors import AuthenticationError
from engine.control.handshake import Handshake, Identity, dial
from engine.control.thread_driver import greet
from engine.job.launch import single_machine
from engine.job.prefill.adjacent_stages import adjacent_stages
from engine.prefill.handover import transfer_params
from engine.prefill.messages import Sampling
from engine.serve.chunk_inputs import ChunkInputs
from engine.serve.decode import DecodeWorker
from engine.serve.hidden_states import HiddenHeader, HiddenReceiver, HiddenSender, HiddenShape, address_key
from engine.serve.in_rank import RankPrefill, prefill_of
from engine.serve.kv_wire import send_frame
from engine.serve.prefill_wire import Cancel, ChunkLate, ChunkRan, Drop, RunChunk
from tests.runtime.jobs import job
from tests.runtime.prefill.checkpoints import TINY, prompt, save, theirs
from tests.runtime.prefill.live import prefill
from tests.runtime.prefill.test_handover import NEW_TOKENS, own_tokens
from tests.runtime.prefill.test_prefill_worker import Coordinator
from tests.waiting import LIMIT_S, until

TOKENS = 50
ROOM = [{"name": name, "gpus": 24} for name in ("north", "south")]
HIDDEN = int(TINY["hidden_size"])  # type: ignore[call-overload]


class Store:
    """The rendezvous store of one process."""

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def set(self, key: str, value: str) -> None:
        self._said[key] = value

    def check(self, keys: list[str]) -> bool:
        return all(key in self._said for key in keys)

    def get(self, key: str) -> str:
        return self._said[key]


class Pipeline:
    """What the ranks of one prefill pipeline have, put together as they do it.

    The test plays the coordinator and the executors, of one op an iteration.
    """

    def __init__(self, folder: Path, degree: int, keep: ExitStack) -> None:
        settings = prefill(folder, pp_degree=degree, latency={"a_ms": 2, "b_ms": 0, "c_ms": 1e-9})
        of = job(cells=degree, pipelines=degree, datacenters=ROOM, prefill=settings)
        spec, store = single_machine(of, run="r", log_dir=""), Store()
        self.ranks: list[RankPrefill] = []
        self.coordinators: list[Coordinator] = []
        self.spans: list[tuple[int, float, float]] = []
        self.spec = spec
        for number in range(degree):
            me = spec.ranks[number * of.cell.stages]
            runner = prefill_of(spec, me, store, device="cpu", ops=1, span=self._span(number))
            assert runner is not None
            keep.callback(runner.close)
            self.ranks.append(runner)
            self.coordinators.append(Coordinator())
            runner.prefill_worker.attach(self.coordinators[-1])
            runner.prefill_worker.begin(0)

    def _span(self, number: int) -> Any:
        return lambda start, end: self.spans.append((number, start, end))

    def handle(self, stage: int, done: int, tokens: int, **changes: Any) -> None:
        now, final = time.monotonic(), done + tokens == TOKENS
        last = stage == len(self.ranks) - 1
        ids = tuple(prompt(TOKENS)[done : done + tokens]) if stage == 0 else ()
        values = {
            "request": "a",
            "done": done,
            "tokens": tokens,
            "ids": ids,
            "total": TOKENS,
            "iteration": 0,
            "op": 0,
            "begin_s": now,
            "until_s": now + LIMIT_S,
            "lease_s": LIMIT_S,
            "sampling": Sampling() if final and last else None,
            **changes,
        }
        self.ranks[stage].prefill_worker.handle(RunChunk.model_validate(values))

    def run(self, sizes: list[int], **changes: Any) -> list[ChunkRan]:
        """The whole prompt, cut into `sizes`; what the last chunk came to, by stage."""
        done = 0
        for size in sizes:
            for stage in reversed(range(len(self.ranks))):  # the last ones wait for what is not there yet
                self.handle(stage, done, size, **changes)
            done += size
        ran = [coordinator.wait(ChunkRan, len(sizes))[-1] for coordinator in self.coordinators]
        return [one for one in ran if isinstance(one, ChunkRan)]

    @property
    def held(self) -> list[int]:
        """Bytes by stage: of caches, and of hidden states that wait."""
        return [
            rank.prefill_worker._stage.pool.bytes_in_use + rank.prefill_worker._inputs.bytes_in_use
            for rank in self.ranks
        ]

    def until(self, is_so: Any) -> None:
        until(is_so, lambda: f"held: {self.held}", every_s=0.002)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("stages"))


@pytest.fixture
def keep() -> Iterator[ExitStack]:
    with ExitStack() as keep:
        yield keep


@pytest.mark.parametrize("sizes", [[TOKENS], [7, 30, 13]], ids=["whole", "chunks"])
@pytest.mark.parametrize("degree", [2, 4])
def test_the_last_stage_draws_the_token_of_the_whole_model(
    folder: Path, keep: ExitStack, degree: int, sizes: list[int]
) -> None:
    pipeline = Pipeline(folder, degree, keep)
    ran = pipeline.run(sizes)
    expected = int(theirs(prompt(TOKENS)).argmax())
    assert [one.token for one in ran] == [None] * (degree - 1) + [expected]
    for earlier, later in pairwise(ran):
        assert earlier.end_s <= later.start_s
    assert pipeline.held[-1] == 0, "it knows that its cache is not wanted"
    assert all(held > 0 for held in pipeline.held[:-1])
    for rank in pipeline.ranks:
        rank.prefill_worker.handle(Drop(request="a"))
    pipeline.until(lambda: pipeline.held == [0] * degree)


def test_the_caches_of_all_stages_go_on_to_a_decode_worker(folder: Path, keep: ExitStack) -> None:
    pipeline = Pipeline(folder, 2, keep)
    ran = pipeline.run([30, 20], keep=True)
    stages = [one.cache for one in ran if one.cache is not None]
    assert [(stage.first_layer, stage.layers) for stage in stages] == [(0, 2), (2, 2)]
    params = transfer_params(engine_id="r/1", request="a", tokens=TOKENS, stages=stages)
    secret = pipeline.spec.secret.encode()
    worker = DecodeWorker(folder, Identity(rank=99, run="r", generation=1, secret=secret))
    first = ran[-1].token
    assert first is not None
    tokens = worker.decode(worker.fetch(params), first, max_new_tokens=NEW_TOKENS - 1)
    assert [first, *tokens] == own_tokens(prompt(TOKENS))
    assert pipeline.held == [0, 0]


def test_a_chunk_that_is_not_handed_on_in_time_is_given_back(folder: Path, keep: ExitStack) -> None:
    pipeline = Pipeline(folder, 2, keep)
    pipeline.handle(1, 0, TOKENS, until_s=time.monotonic() + 0.03)
    (late,) = pipeline.coordinators[1].wait(ChunkLate)
    assert isinstance(late, ChunkLate)
    assert (late.done, late.why) == (0, "late")
    assert pipeline.held == [0, 0]


def test_a_later_stage_waits_for_its_own_bubble(folder: Path, keep: ExitStack) -> None:
    """What is handed on may be there long before the GPU is free."""
    pipeline = Pipeline(folder, 2, keep)
    prefill_worker = pipeline.ranks[1].prefill_worker
    prefill_worker.take()
    start = time.monotonic()
    pipeline.handle(1, 0, TOKENS, iteration=1)
    pipeline.handle(0, 0, TOKENS)
    pipeline.until(lambda: prefill_worker._inputs.bytes_in_use == TOKENS * HIDDEN * 4)
    assert not pipeline.coordinators[1].said
    end = time.monotonic()
    prefill_worker.give(start, end)
    prefill_worker.begin(1)
    (ran,) = pipeline.coordinators[1].wait(ChunkRan)
    assert isinstance(ran, ChunkRan)
    assert ran.start_s >= end
    assert prefill_worker.take() == ran.end_s
    prefill_worker.give(ran.end_s, time.monotonic())
    assert [(number, begin) for number, begin, _ in pipeline.spans] == [(1, ran.start_s)]


def test_what_ran_ahead_is_run_again_in_other_pieces(folder: Path, keep: ExitStack) -> None:
    """The first stage was further than the second when the rest was placed again."""
    pipeline = Pipeline(folder, 2, keep)
    for stage in (0, 1):
        pipeline.handle(stage, 0, 20)
    pipeline.coordinators[1].wait(ChunkRan)
    pipeline.handle(0, 20, 30)
    pipeline.coordinators[0].wait(ChunkRan, 2)
    pipeline.ranks[0].prefill_worker.handle(Cancel(request="a", done=20))
    for done, tokens in ((20, 10), (30, 20)):
        for stage in (0, 1):
            pipeline.handle(stage, done, tokens)
    ran = pipeline.coordinators[1].wait(ChunkRan, 3)[-1]
    assert isinstance(ran, ChunkRan)
    assert ran.token == int(theirs(prompt(TOKENS)).argmax())


def test_a_chunk_that_comes_again_leaves_what_is_offered_alone(folder: Path, keep: ExitStack) -> None:
    pipeline = Pipeline(folder, 2, keep)
    ran = pipeline.run([30, 20], keep=True)
    pipeline.handle(0, 30, 20, keep=True)
    (late,) = pipeline.coordinators[0].wait(ChunkLate)
    assert isinstance(late, ChunkLate)
    assert late.why == "gone"
    cache = ran[0].cache
    assert cache is not None
    assert pipeline.ranks[0].prefill_worker._stage.pool.claim("a", cache.block_ids).filled == TOKENS


@pytest.mark.parametrize("end", ["dropped", "coordinator gone"])
def test_what_is_given_up_is_freed_on_all_stages(folder: Path, keep: ExitStack, end: str) -> None:
    pipeline = Pipeline(folder, 2, keep)
    pipeline.handle(0, 0, 20)
    pipeline.until(lambda: all(pipeline.held[0:1]) and pipeline.ranks[1].prefill_worker._inputs.bytes_in_use)
    for rank in pipeline.ranks:
        if end == "dropped":
            rank.prefill_worker.handle(Drop(request="a"))
        else:
            rank.prefill_worker.detach()
    assert pipeline.held == [0, 0]


def test_a_stage_that_comes_back_is_found_again(keep: ExitStack) -> None:
    store, taken = Store(), Taken()
    shape = HiddenShape(size=4, dtype=torch.float32, context=64)
    sender = HiddenSender(_me(0), store, behind=1, most_bytes=1_000)
    keep.callback(sender.close)
    for number in (1, 2):
        receiver = HiddenReceiver(_me(1), shape, taken, before=0, host="127.0.0.1")
        store.set(address_key(1), f'["127.0.0.1", {receiver.address[1]}]')
        hidden = torch.full((3, 4), float(number))

        def arrives(hidden: torch.Tensor = hidden) -> bool:
            """Sent until it is there: what is sent before a connection, or over the old one, is lost."""
            sender.send(HiddenHeader(request="r", done=0, tokens=3, lease_s=1.0), hidden)
            return bool(taken.came) and torch.equal(taken.came[-1], hidden)

        until(arrives)
        receiver.close()


@pytest.mark.parametrize(
    ("rank", "secret", "frame"),
    [
        (0, b"guess", {}),
        (3, b"s", {}),
        (0, b"s", {"request": "r", "done": 60, "tokens": 5, "lease_s": 1.0}),
        (0, b"s", {"request": "r", "done": 0, "tokens": -1, "lease_s": 1.0}),
        (0, b"s", {"gift": 1}),
    ],
    ids=["wrong secret", "another rank", "beyond the context", "no tokens", "no chunk"],
)
def test_who_is_not_the_stage_before_is_not_heard(
    keep: ExitStack, rank: int, secret: bytes, frame: dict[str, Any]
) -> None:
    taken = Taken()
    shape = HiddenShape(size=4, dtype=torch.float32, context=64)
    receiver = HiddenReceiver(_me(1), shape, taken, before=0, host="127.0.0.1")
    keep.callback(receiver.close)
    me = Identity(rank=rank, run="r", generation=1, secret=secret)
    with (
        socket.create_connection(receiver.address, timeout=LIMIT_S) as connected,
        suppress(AuthenticationError, OSError),
    ):
        greet(connected, Handshake(dial(me, peer=1)))
        send_frame(connected, frame)
        send_frame(connected, {}, bytes(16 * 5))
        assert connected.recv(1) == b"", "it closed"
    assert not taken.came


@given(st.permutations(range(6)), st.floats(1, 9))
def test_hidden_states_are_kept_until_they_are_used_dropped_or_late(order: list[int], later_s: float) -> None:
    now = [0.0]
    inputs = ChunkInputs(1_000, clock=lambda: now[0])
    for number in order:
        what = HiddenHeader(request=f"r{number % 2}", done=number, tokens=2, lease_s=1 + number)
        inputs.put(what, torch.zeros(2, 4))
    assert inputs.bytes_in_use == 6 * 2 * 4 * 4
    inputs.drop("r1")
    now[0] = later_s
    inputs.expire()
    left = [number for number in (0, 2, 4) if 1 + number > later_s]
    assert inputs.bytes_in_use == len(left) * 2 * 4 * 4
    for number in range(6):
        chunk = _chunk(number, request=f"r{number % 2}")
        assert inputs.has(chunk) == (inputs.take(chunk) is not None) == (number in left)
    assert inputs.bytes_in_use == 0


def test_hidden_states_that_wait_stay_within_their_budget() -> None:
    inputs = ChunkInputs(100, clock=lambda: 0.0)  # three of 32 bytes
    for number in (0, 1, 2, 0, 3):
        inputs.put(HiddenHeader(request="r", done=number, tokens=2, lease_s=9), torch.zeros(2, 4))
        assert inputs.bytes_in_use <= 100
    assert [number for number in range(4) if inputs.has(_chunk(number))] == [0, 2, 3]
    inputs.put(HiddenHeader(request="r", done=9, tokens=2, lease_s=9), torch.zeros(2, 40))
    assert not inputs.has(_chunk(9))


def test_hidden_states_that_cannot_be_sent_stay_within_their_budget(keep: ExitStack) -> None:
    store = Busy()
    sender = HiddenSender(_me(0), store, behind=1, most_bytes=100)
    keep.callback(sender.close)
    keep.callback(store.answered.set)
    for number in range(50):
        sender.send(HiddenHeader(request="r", done=number, tokens=2, lease_s=9), torch.zeros(2, 4))
        assert sender.bytes_queued <= 100
    assert sender.bytes_queued >= 64  # one may be on its way


@pytest.mark.parametrize(
    ("cells", "pipelines", "degree"), [(1, 2, 1), (2, 3, 1), (4, 1, 2), (4, 2, 4), (6, 2, 3)]
)
def test_a_pipeline_is_ranks_at_one_place_of_neighbouring_cells(
    cells: int, pipelines: int, degree: int
) -> None:
    settings = prefill(Path("/x"), pp_degree=degree)
    of = job(cells=cells, pipelines=cells * pipelines, prefill=settings, datacenters=ROOM)
    spec = single_machine(of, run="r", log_dir="")
    for me in spec.ranks:
        here = adjacent_stages(spec, me)
        assert (here.stage, here.stages) == (me.pipeline // pipelines % degree, degree)
        if here.behind is None:
            assert here.stage == degree - 1
            continue
        other = spec.ranks[here.behind]
        assert adjacent_stages(spec, other).before == me.rank
        assert (other.stage, other.dc, other.pipeline) == (me.stage, me.dc, me.pipeline + pipelines)


class Busy:
    """A store that does not answer before it is told to."""

    def __init__(self) -> None:
        self.answered = threading.Event()

    def check(self, keys: list[str]) -> bool:
        self.answered.wait(LIMIT_S)
        return False


class Taken:
    """Keeps what it is handed."""

    def __init__(self) -> None:
        self.came: list[torch.Tensor] = []

    def arrived(self, what: HiddenHeader, hidden: torch.Tensor) -> None:
        assert hidden.shape == (what.tokens, 4)
        self.came.append(hidden)


def _chunk(done: int, request: str = "r") -> RunChunk:
    return RunChunk(
        request=request, done=done, tokens=2, total=9, iteration=0, op=0, begin_s=0, until_s=0, lease_s=0
    )


def _me(rank: int) -> Identity:
    return Identity(rank=rank, run="r", generation=1, secret=b"s")
