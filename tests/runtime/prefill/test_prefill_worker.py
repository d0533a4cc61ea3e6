"""A prefill worker next to an executor that the test plays: training comes first, and nothing is left."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.control.handshake import Identity
from engine.inputs import Document
from engine.prefill.latency import LatencyModel
from engine.prefill.messages import Sampling
from engine.serve import prefill_worker, yielding
from engine.serve.kv_server import KvServer
from engine.serve.prefill_wire import (
    Cancel,
    ChunkLate,
    ChunkRan,
    Drop,
    IterationBegun,
    IterationRan,
    RunChunk,
)
from engine.serve.prefill_worker import REMEMBERED, PrefillWorker
from engine.serve.stage import PrefillStage, StageSettings
from tests.runtime.prefill.checkpoints import BLOCK, prompt, save, theirs
from tests.waiting import LIMIT_S, until

CHUNK_S = 0.08
TOKENS = 2 * BLOCK
LOOKED = ChunkLate(request="too late", done=0, why="late")


class Coordinator:
    """Keeps what the prefill worker says."""

    def __init__(self) -> None:
        self.said: list[Document] = []

    def send(self, message: Document) -> None:
        self.said.append(message)

    def wait(self, kind: type[Document], count: int = 1) -> list[Document]:
        def found() -> list[Document]:
            messages = [message for message in self.said if isinstance(message, kind)]
            return messages if len(messages) >= count else []

        return until(found, lambda: f"{count} of {kind.__name__} among {self.said}", every_s=0.002)


class HeldOpen:
    """Every chunk of a stage lasts, once it `runs`, until it `may_end`."""

    def __init__(self, stage: PrefillStage, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runs, self.may_end = threading.Event(), threading.Event()
        monkeypatch.setattr(stage, "_stretch", self._stretch)

    def _stretch(self, *_: object) -> None:
        self.runs.set()
        assert self.may_end.wait(LIMIT_S)


class Table:
    """A prefill worker with three ops per iteration, its coordinator, and the stage behind it."""

    def __init__(self, folder: Path) -> None:
        latency = LatencyModel(a_ms=1e3 * CHUNK_S, b_ms=1e-6, c_ms=0.0)
        settings = StageSettings(
            stage=0, stages=1, kv_budget_bytes=1_000_000, block_tokens=BLOCK, latency=latency
        )
        self.stage, self.coordinator, self.spans = PrefillStage.load(folder, settings), Coordinator(), []
        self.server = KvServer(
            self.stage.pool, Identity(rank=0, run="r", generation=1, secret=b"s"), host="127.0.0.1"
        )
        self.prefill_worker = PrefillWorker(
            self.stage, self.server, ops=3, leads=True, span=lambda *span: self.spans.append(span)
        )
        self.prefill_worker.attach(self.coordinator)

    def chunk(self, *, op: int = 0, done: int = 0, tokens: int = TOKENS, **changes: object) -> RunChunk:
        ids = prompt(TOKENS)[done : done + tokens]
        now = time.monotonic()
        values = {
            "request": "a",
            "done": done,
            "ids": tuple(ids),
            "tokens": len(ids),
            "total": TOKENS,
            "iteration": 0,
            "op": op,
            "begin_s": now,
            "until_s": now + LIMIT_S,
            "lease_s": LIMIT_S,
            "sampling": Sampling(),
            **changes,
        }
        return RunChunk.model_validate(values)

    def have_looked(self) -> None:
        """Return when the prefill worker has looked at all chunks so far, and has run those that may begin.

        It looks at them in the order of `begin_s`: one more, which is too late, is given back after them.
        """
        self.prefill_worker.handle(self.chunk(request=LOOKED.request, until_s=time.monotonic()))
        until(lambda: LOOKED in self.coordinator.said, every_s=0.002)
        self.coordinator.said.remove(LOOKED)

    def op(self, then: Callable[[], None] = lambda: None) -> float:
        """A training op; returns how long it waited for the GPU."""
        asked_at = time.monotonic()
        free = self.prefill_worker.take()
        start = time.monotonic()
        assert free <= start
        then()
        self.prefill_worker.give(start, time.monotonic())
        return start - asked_at

    def rest_of_iteration(self, ops: int) -> IterationRan:
        """So many ops to its end, and the begin of the next one; what the coordinator is told of it."""
        for _ in range(ops):
            self.op()
        self.prefill_worker.begin(self.prefill_worker._training.iteration + 1)
        message = self.coordinator.said[-1]
        assert isinstance(message, IterationRan)
        return message


@pytest.fixture
def table(tmp_path: Path) -> Iterator[Table]:
    table_of_run = Table(save(tmp_path))
    yield table_of_run
    table_of_run.prefill_worker.close()
    table_of_run.server.close()


def test_a_prompt_in_chunks_gives_the_models_token_and_frees_its_cache(table: Table) -> None:
    table.prefill_worker.begin(0)
    table.prefill_worker.handle(table.chunk(tokens=BLOCK, sampling=None))
    table.prefill_worker.handle(table.chunk(done=BLOCK, tokens=BLOCK))
    first, last = table.coordinator.wait(ChunkRan, 2)
    assert isinstance(first, ChunkRan)
    assert isinstance(last, ChunkRan)
    assert (first.token, last.token) == (None, int(theirs(prompt(TOKENS)).argmax()))
    assert last.start_s >= first.end_s >= first.start_s + CHUNK_S
    assert table.stage.pool.bytes_in_use == 0


def test_nothing_begins_while_training_has_the_gpu_or_before_its_bubble(table: Table) -> None:
    table.prefill_worker.handle(table.chunk(op=1))
    table.have_looked()
    table.prefill_worker.begin(0)
    table.have_looked()
    table.op(table.have_looked)
    ran = table.coordinator.wait(ChunkRan)[0]
    iteration = table.rest_of_iteration(2)
    assert isinstance(ran, ChunkRan)
    assert ran.start_s >= iteration.ends_s[0]
    assert (iteration.waited_s, table.prefill_worker.waits.ops) == (0.0, 0)


def test_a_chunk_whose_bubble_is_over_is_given_back(table: Table) -> None:
    table.prefill_worker.begin(0)
    table.op()
    table.prefill_worker.handle(table.chunk(op=0))
    late = table.coordinator.wait(ChunkLate)[0]
    assert isinstance(late, ChunkLate)
    assert (late.done, late.why) == (0, "late")


def test_a_chunk_that_would_not_be_done_in_time_is_given_back(table: Table) -> None:
    table.prefill_worker.begin(0)
    table.prefill_worker.handle(table.chunk(until_s=time.monotonic() + CHUNK_S / 2))
    assert table.coordinator.wait(ChunkLate)
    assert not table.stage.pool.bytes_in_use


def test_training_waits_for_a_chunk_that_has_begun_and_for_no_other(
    table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk, waiting_s = HeldOpen(table.stage, monkeypatch), []

    def take_part(_thread: int) -> None:
        """What training calls when it has to wait."""
        waiting_s.append(time.monotonic())
        chunk.may_end.set()

    monkeypatch.setattr(prefill_worker, "take_part", take_part)
    table.prefill_worker.begin(0)
    table.prefill_worker.handle(table.chunk(tokens=BLOCK, sampling=None))
    table.prefill_worker.handle(table.chunk(done=BLOCK, tokens=BLOCK))
    assert chunk.runs.wait(LIMIT_S)
    waited_s = table.op()
    (late,) = table.coordinator.wait(ChunkLate)
    (ran,) = table.coordinator.wait(ChunkRan)
    assert isinstance(ran, ChunkRan)
    assert isinstance(late, ChunkLate)
    assert (ran.done, late.done, late.why) == (0, BLOCK, "late")
    assert table.spans == [(ran.start_s, ran.end_s)]
    iteration, waits = table.rest_of_iteration(2), table.prefill_worker.waits
    assert ran.end_s <= iteration.starts_s[0]
    told_s = iteration.waited_s
    assert (waits.ops, waits.total_s, waits.longest_s) == (1, told_s, told_s)
    assert 0 < ran.end_s - waiting_s[0] <= told_s <= waited_s


@pytest.mark.parametrize("end", ["drop", "gone"])
def test_what_is_given_up_frees_its_cache(table: Table, end: str) -> None:
    table.prefill_worker.begin(0)
    table.prefill_worker.handle(table.chunk(keep=True))
    table.coordinator.wait(ChunkRan)
    assert table.stage.pool.bytes_in_use > 0
    if end == "drop":
        table.prefill_worker.handle(Drop(request="a"))
    else:
        table.prefill_worker.detach()
    assert table.stage.pool.bytes_in_use == 0


def test_cancelled_chunks_do_not_run(table: Table) -> None:
    table.prefill_worker.handle(table.chunk(tokens=BLOCK, sampling=None))
    table.prefill_worker.handle(table.chunk(done=BLOCK, tokens=BLOCK))
    table.prefill_worker.handle(Cancel(request="a", done=BLOCK))
    table.prefill_worker.begin(0)
    table.coordinator.wait(ChunkRan)
    table.have_looked()
    assert len(table.coordinator.said) == 1


def test_a_chunk_behind_one_that_never_ran_is_given_back(table: Table) -> None:
    table.prefill_worker.begin(0)
    table.prefill_worker.handle(table.chunk(done=BLOCK, tokens=BLOCK))
    late = table.coordinator.wait(ChunkLate)[0]
    assert isinstance(late, ChunkLate)
    assert late.why == "gone"


def test_a_coordinator_that_comes_later_is_told_of_the_iterations_before(table: Table) -> None:
    table.prefill_worker.begin(0)
    for _ in range(REMEMBERED + 2):
        table.rest_of_iteration(3)
    table.op()
    later = Coordinator()
    table.prefill_worker.attach(later)
    iterations = [(m.kind, m.iteration) for m in later.said if isinstance(m, IterationBegun | IterationRan)]
    both = [(kind, n) for n in range(REMEMBERED + 3) for kind in ("begun", "iteration")]
    assert iterations == both[-2 * REMEMBERED - 1 : -1]


def test_one_message_an_iteration_tells_the_coordinator_of_all_ops(table: Table) -> None:
    table.prefill_worker.begin(0)
    for _ in range(2):
        iterated = table.rest_of_iteration(3)
    assert len(table.coordinator.said) == 4, "and one when its first op has run"
    starts, ends = iterated.starts_s, iterated.ends_s
    assert list(starts) == sorted(starts)
    assert all(b <= e for b, e in zip(starts, ends, strict=True))
    begun = table.coordinator.wait(IterationBegun, 2)[1]
    assert isinstance(begun, IterationBegun)
    assert begun.start_s == starts[0]


def test_the_last_op_lasts_until_the_next_iteration(table: Table) -> None:
    table.prefill_worker.begin(0)
    for _ in range(3):
        table.op()
    table.prefill_worker.handle(table.chunk(iteration=1))
    table.have_looked()
    assert not any(isinstance(message, ChunkRan) for message in table.coordinator.said)
    before_s = time.monotonic()
    table.prefill_worker.begin(1)
    assert table.coordinator.wait(ChunkRan)
    (ended,) = table.coordinator.wait(IterationRan)
    assert isinstance(ended, IterationRan)
    assert ended.ends_s[-1] >= before_s


def test_on_a_gpu_an_op_begins_while_a_chunk_runs(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels of training come first there, so the host has nothing to wait for."""
    monkeypatch.setattr(PrefillStage, "gives_way", True)
    chunk = HeldOpen(table.stage, monkeypatch)
    table.prefill_worker.begin(0)
    table.prefill_worker.handle(table.chunk())
    assert chunk.runs.wait(LIMIT_S)
    table.op(chunk.may_end.set)
    table.coordinator.wait(ChunkRan)
    assert table.rest_of_iteration(2).waited_s == 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="threads give way on Linux alone")
def test_a_chunk_gives_way_until_training_waits_for_it(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    thread = table.prefill_worker._thread.native_id
    assert thread is not None
    if not yielding.give_way(thread):
        pytest.skip("this user may not take it back")
    chunk, policies = HeldOpen(table.stage, monkeypatch), []

    def take_part(taken: int) -> None:
        policies.append(os.sched_getscheduler(thread))
        yielding.take_part(taken)
        policies.append(os.sched_getscheduler(thread))
        chunk.may_end.set()

    monkeypatch.setattr(prefill_worker, "take_part", take_part)
    table.prefill_worker.begin(0)
    table.prefill_worker.handle(table.chunk())
    assert chunk.runs.wait(LIMIT_S)
    table.op()
    table.coordinator.wait(ChunkRan)
    assert policies == [os.SCHED_IDLE, os.SCHED_OTHER]
    assert os.sched_getscheduler(thread) == os.SCHED_IDLE, "for the next chunk"
