"""A seat beside an executor that is played by the test: training comes first, and nothing stays behind."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.inputs import Document
from engine.prefill.desk import Sampling
from engine.prefill.latency import LatencyModel
from engine.runtime.prefill.kv_server import KvServer
from engine.runtime.prefill.seat import Seat
from engine.runtime.prefill.seat_wire import Cancel, ChunkLate, ChunkRan, Drop, OpEnded, Row
from engine.runtime.prefill.stage import PrefillStage, StageSettings
from engine.runtime.transport.handshake import Identity
from tests.runtime.prefill.checkpoints import BLOCK, prompt, save, theirs

CHUNK_S = 0.08
TOKENS = 2 * BLOCK


class Desk:
    """Keeps what the seat says."""

    def __init__(self) -> None:
        self.said: list[Document] = []

    def say(self, message: Document) -> None:
        self.said.append(message)

    def wait(self, kind: type[Document], count: int = 1) -> list[Document]:
        until = time.monotonic() + 10
        while time.monotonic() < until:
            found = [message for message in self.said if isinstance(message, kind)]
            if len(found) >= count:
                return found
            time.sleep(0.002)
        raise AssertionError(f"no {kind.__name__}: {self.said}")


class Table:
    """A seat with three ops an iteration, its desk, and the stage behind it."""

    def __init__(self, folder: Path) -> None:
        latency = LatencyModel(a_ms=1e3 * CHUNK_S, b_ms=1e-6, c_ms=0.0)
        settings = StageSettings(
            stage=0, stages=1, kv_budget_bytes=1_000_000, block_tokens=BLOCK, latency=latency
        )
        self.stage, self.desk, self.spans = PrefillStage.load(folder, settings), Desk(), []
        self.server = KvServer(
            self.stage.pool, Identity(rank=0, run="r", generation=1, secret=b"s"), host="127.0.0.1"
        )
        self.seat = Seat(self.stage, self.server, ops=3, span=lambda *span: self.spans.append(span))
        self.seat.attach(self.desk)

    def row(self, *, op: int = 0, done: int = 0, tokens: int = TOKENS, **changes: object) -> Row:
        ids = prompt(TOKENS)[done : done + tokens]
        now = time.monotonic()
        values = {
            "request": "a", "done": done, "ids": tuple(ids), "total": TOKENS, "iteration": 0, "op": op,
            "begin_s": now, "until_s": now + 5, "lease_s": 30.0, "sampling": Sampling(), **changes,
        }  # fmt: skip
        return Row.model_validate(values)

    def op(self, then: Callable[[], None] = lambda: None) -> float:
        """A training op; returns how long it waited for the GPU."""
        asked = time.monotonic()
        start = self.seat.take()
        then()
        self.seat.give(start, time.monotonic())
        return start - asked


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    made = Table(save(tmp_path))
    yield made
    made.seat.close()
    made.server.close()


def test_a_prompt_in_chunks_gives_the_models_token_and_frees_its_cache(table: Table) -> None:
    table.seat.begin(0)
    table.seat.heed(table.row(tokens=BLOCK, sampling=None))
    table.seat.heed(table.row(done=BLOCK, tokens=BLOCK))
    first, last = table.desk.wait(ChunkRan, 2)
    assert isinstance(first, ChunkRan)
    assert isinstance(last, ChunkRan)
    assert (first.token, last.token) == (None, int(theirs(prompt(TOKENS)).argmax()))
    assert last.start_s >= first.end_s >= first.start_s + CHUNK_S
    assert table.stage.pool.bytes_in_use == 0


def test_nothing_begins_while_training_has_the_gpu_or_before_its_bubble(table: Table) -> None:
    table.seat.heed(table.row(op=1))
    time.sleep(0.02)
    table.seat.begin(0)
    time.sleep(0.02)
    assert table.op(lambda: time.sleep(0.05)) < 0.01, "it is meant for after this op"
    ran = table.desk.wait(ChunkRan)[0]
    ended = table.desk.wait(OpEnded)[0]
    assert isinstance(ran, ChunkRan)
    assert isinstance(ended, OpEnded)
    assert ran.start_s >= ended.end_s
    assert (ended.waited_s, table.seat.waits.ops) == (0.0, 0)


def test_a_chunk_whose_bubble_is_over_is_given_back(table: Table) -> None:
    table.seat.begin(0)
    table.op()
    table.seat.heed(table.row(op=0))
    late = table.desk.wait(ChunkLate)[0]
    assert isinstance(late, ChunkLate)
    assert (late.done, late.why) == (0, "late")


def test_a_chunk_that_would_not_be_done_in_time_is_given_back(table: Table) -> None:
    table.seat.begin(0)
    table.seat.heed(table.row(until_s=time.monotonic() + CHUNK_S / 2))
    assert table.desk.wait(ChunkLate)
    assert not table.stage.pool.bytes_in_use


def test_training_waits_for_a_chunk_that_has_begun_and_for_no_other(table: Table) -> None:
    table.seat.begin(0)
    table.seat.heed(table.row(tokens=BLOCK, sampling=None))
    table.seat.heed(table.row(done=BLOCK, tokens=BLOCK))
    time.sleep(CHUNK_S / 4)
    waited_s = table.op()
    assert CHUNK_S / 4 < waited_s < 1.5 * CHUNK_S
    assert len(table.desk.wait(ChunkRan)) == 1
    assert table.desk.wait(ChunkLate)
    assert len(table.spans) == 1
    (ended,) = table.desk.wait(OpEnded)
    assert isinstance(ended, OpEnded)
    waits = table.seat.waits
    assert (waits.ops, waits.total_s, waits.longest_s) == (1, ended.waited_s, ended.waited_s)
    assert CHUNK_S / 4 < ended.waited_s <= waited_s


@pytest.mark.parametrize("end", ["drop", "gone"])
def test_what_is_given_up_frees_its_cache(table: Table, end: str) -> None:
    table.seat.begin(0)
    table.seat.heed(table.row(keep=True))
    table.desk.wait(ChunkRan)
    assert table.stage.pool.bytes_in_use > 0
    if end == "drop":
        table.seat.heed(Drop(request="a"))
    else:
        table.seat.detach()
    assert table.stage.pool.bytes_in_use == 0


def test_cancelled_chunks_do_not_run(table: Table) -> None:
    table.seat.heed(table.row(tokens=BLOCK, sampling=None))
    table.seat.heed(table.row(done=BLOCK, tokens=BLOCK))
    table.seat.heed(Cancel(request="a", done=BLOCK))
    table.seat.begin(0)
    table.desk.wait(ChunkRan)
    time.sleep(2 * CHUNK_S)
    assert len(table.desk.said) == 1


def test_a_chunk_behind_one_that_never_ran_is_given_back(table: Table) -> None:
    table.seat.begin(0)
    table.seat.heed(table.row(done=BLOCK, tokens=BLOCK))
    late = table.desk.wait(ChunkLate)[0]
    assert isinstance(late, ChunkLate)
    assert late.why == "gone"


def test_a_desk_that_comes_later_is_told_of_the_ops_before(table: Table) -> None:
    table.seat.begin(0)
    for _ in range(3):
        table.op()
    table.seat.begin(1)
    later = Desk()
    table.seat.attach(later)
    assert [(m.iteration, m.op) for m in later.said if isinstance(m, OpEnded)] == [(0, 0), (0, 1), (0, 2)]


def test_the_last_op_lasts_until_the_next_iteration(table: Table) -> None:
    table.seat.begin(0)
    for _ in range(3):
        table.op()
    table.seat.heed(table.row(iteration=1))
    between = threading.Event()
    assert not between.wait(0.05)
    assert not any(isinstance(message, ChunkRan) for message in table.desk.said)
    table.seat.begin(1)
    assert table.desk.wait(ChunkRan)
    assert len(table.desk.wait(OpEnded)) == 3
