"""A coordinator's requests without sockets: one GPU, a clock that the test sets, and a rank that it plays."""

from dataclasses import replace
from typing import Any

import pytest

from engine.inputs import Document
from engine.job.prefill.settings import PrefillSettings
from engine.prefill.handover import StageCache
from engine.prefill.kernels.place import BEGIN, GPU
from engine.prefill.messages import PrefillRequest
from engine.prefill.placement import Moved
from engine.serve.coordinator import LEAD_MS, PATIENCE_MS, PrefillCoordinator
from engine.serve.coordinator_plan import CoordinatorPlan, TrainingGpus
from engine.serve.kv_pool import KvShape
from engine.serve.prefill_progress import Model
from engine.serve.prefill_wire import (
    Cancel,
    ChunkLate,
    ChunkRan,
    Drop,
    IterationBegun,
    IterationRan,
    OpsChanged,
    RunChunk,
)
from engine.serve.tokenizing import tokenizer_of

PERIOD_MS, BUSY_MS = 100.0, 40.0  # one op at the begin of each iteration
SHAPE = KvShape(first_layer=0, layers=1, kv_heads=1, head_size=8, dtype="fp32", block_tokens=32)
CACHE = StageCache(rank=0, host="h", port=1, block_ids=(0,), first_layer=0, layers=1)


class Box:
    """A gateway, a rank or a decoder that keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[Document] = []
        self.started: list[tuple[str, int, int]] = []
        self.stopped: list[str] = []

    def post(self, message: Document) -> None:
        self.sent.append(message)

    def start(self, request: str, params: Document, token: int, *, most: int, sampling: Document) -> None:
        self.started.append((request, token, most))

    def stop(self, request: str) -> None:
        self.stopped.append(request)

    def kinds(self) -> list[str]:
        return [message.kind for message in self.sent]  # type: ignore[attr-defined]

    def last(self) -> Any:
        return self.sent[-1]


class Coordinator:
    """The service after four iterations, at 10 ms into the fifth."""

    def __init__(self, tmp_path: Any, *, cells: int = 1, **changes: Any) -> None:
        settings = PrefillSettings(
            **{
                "checkpoint": "/x",
                "latency": {"a_ms": 1, "b_ms": 0.5, "c_ms": 0},
                "dtype": "fp32",
                "chunk_tokens": 16,
                "kv_budget_gb": 0.001,
                **changes,
            }
        )
        self.now_ms, self.decoder, self.gateway = 0.0, Box(), Box()
        self.ranks = [Box() for _ in range(cells)]
        self.rank, self.degree = self.ranks[0], settings.pp_degree
        model = Model(
            tokenizer=tokenizer_of(tmp_path, vocab=256),
            vocabulary=256,
            context=2048,
            ends=frozenset({0}),
            engine_id="run/1/north",
        )
        gpus = TrainingGpus(ranks=tuple(range(cells)), ops=(1,) * cells, stages=1, cells=cells)
        plan = CoordinatorPlan(gpus, settings, SHAPE, layers=settings.pp_degree, token_bytes=4)
        self.service = PrefillCoordinator(
            plan, model, decoder=self.decoder, now_ms=lambda: self.now_ms, origin_s=0.0
        )
        for gpu, rank in enumerate(self.ranks):
            self.service.attach(gpu, rank)
        for iteration in range(5):
            self.trains(iteration)
        self.now_ms = 450.0

    def trains(self, iteration: int, late_ms: float = 0.0, lasts_ms: float = BUSY_MS) -> None:
        start = iteration * PERIOD_MS + late_ms
        end = start + lasts_ms
        self.now_ms = max(self.now_ms, end)
        self.service.handle(0, IterationBegun(iteration=iteration, start_s=start / 1e3))
        ran = IterationRan(iteration=iteration, starts_s=(start / 1e3,), ends_s=(end / 1e3,))
        for gpu in range(len(self.ranks)):
            self.service.handle(gpu, ran)

    def ask(self, name: str = "a", tokens: int = 40, **what: Any) -> None:
        given = {"prompt": "x" * tokens, "max_tokens": 1, "longest_prompt": 1000, **what}
        self.service.submit(self.gateway, PrefillRequest(request=name, **given))

    def turn(self, at_ms: float, gpu: int = 0) -> list[RunChunk]:
        """The chunks that go out by then to a rank."""
        self.now_ms = at_ms
        sent = self.ranks[gpu].sent
        before = len(sent)
        self.service.turn()
        return [message for message in sent[before:] if isinstance(message, RunChunk)]

    def chunks(self, gpu: int) -> list[RunChunk]:
        """All that went out to a rank."""
        return [message for message in self.ranks[gpu].sent if isinstance(message, RunChunk)]

    def ran(
        self, chunk: RunChunk, token: int | None = None, cache: StageCache | None = None, gpu: int = 0
    ) -> None:
        end_s = chunk.begin_s + (0.001 + 0.0005 * chunk.tokens) / self.degree
        self.now_ms = max(self.now_ms, end_s * 1e3)
        self.service.handle(
            gpu,
            ChunkRan(
                request=chunk.request,
                done=chunk.done,
                tokens=chunk.tokens,
                start_s=chunk.begin_s,
                end_s=end_s,
                token=token,
                cache=cache,
            ),
        )


@pytest.fixture
def coordinator(tmp_path: Any) -> Coordinator:
    return Coordinator(tmp_path)


def test_a_prompt_is_accepted_sent_and_answered(coordinator: Coordinator) -> None:
    coordinator.ask()
    accepted = coordinator.gateway.last()
    assert (accepted.kind, accepted.prompt_tokens) == ("accepted", 40)
    (chunk,) = coordinator.turn(451.0)
    assert (chunk.iteration, chunk.op, chunk.final) == (5, 0, True)
    assert chunk.until_s <= 0.5
    coordinator.ran(chunk, token=ord("y"))
    assert coordinator.gateway.kinds() == ["accepted", "token", "done"]
    assert coordinator.gateway.last().ttft_ms == pytest.approx(coordinator.now_ms - 450.0)
    assert coordinator.service.turn() is None, "nothing is under way"


@pytest.mark.parametrize("ignored", [False, True])
def test_an_end_of_text_ends_the_answer_unless_it_is_ignored(coordinator: Coordinator, ignored: bool) -> None:
    coordinator.ask(max_tokens=5, sampling={"ignore_eos": ignored})
    (chunk,) = coordinator.turn(451.0)
    coordinator.ran(chunk, token=0, cache=CACHE)  # 0 ends an answer of this model
    assert coordinator.gateway.kinds() == (["accepted", "token"] if ignored else ["accepted", "done"])
    assert [most for _, _, most in coordinator.decoder.started] == ([4] if ignored else [])


def test_a_prompt_beyond_the_context_is_told_so_before_what_its_tenancy_allows(
    coordinator: Coordinator,
) -> None:
    coordinator.ask(tokens=2040, max_tokens=9, longest_prompt=100)
    refused = coordinator.gateway.last()
    assert (refused.reason, refused.prompt_tokens) == ("context_length_exceeded", 2040)
    assert refused.message == (
        "This model's maximum context length is 2048 tokens. However, you requested 2049 tokens "
        "(2040 in the prompt, 9 for the completion)."
    )


def test_a_long_prompt_goes_in_chunks_through_bubbles_shortly_before_each(coordinator: Coordinator) -> None:
    coordinator.ask(tokens=150)
    (first,) = coordinator.turn(451.0)
    assert first.done == 0
    assert not first.final
    coordinator.ran(first)
    second_begins_ms = 500.0 + BUSY_MS
    assert coordinator.turn(second_begins_ms - LEAD_MS - 5) == []
    coordinator.trains(5)
    (second,) = coordinator.turn(second_begins_ms + 0.5)
    assert second.done == len(first.ids)
    assert (second.iteration, second.final) == (6, True)


def test_a_chunk_that_was_late_is_placed_anew(coordinator: Coordinator) -> None:
    coordinator.ask()
    (chunk,) = coordinator.turn(451.0)
    coordinator.service.handle(0, ChunkLate(request=chunk.request, done=0, why="late"))
    (again,) = coordinator.turn(452.0)
    assert again.done == 0
    coordinator.ran(again, token=1)
    assert coordinator.gateway.last().kind == "done"


def test_one_that_is_always_late_fails_in_the_end_and_says_why(coordinator: Coordinator) -> None:
    coordinator.ask()
    iteration, at_ms = 5, 450.0
    while coordinator.gateway.last().kind == "accepted" and iteration < 200:
        at_ms += 10.0
        if at_ms >= iteration * PERIOD_MS + BUSY_MS:
            coordinator.trains(iteration)
            iteration += 1
        for chunk in coordinator.turn(at_ms):
            coordinator.service.handle(0, ChunkLate(request=chunk.request, done=0, why="late"))
    assert coordinator.gateway.last().reason == "training"
    assert isinstance(coordinator.rank.last(), Drop)
    assert coordinator.service.counts.failed == {"training": 1}
    assert at_ms > PATIENCE_MS


def test_a_rank_that_says_nothing_of_a_chunk_loses_no_request(coordinator: Coordinator) -> None:
    """It is placed again, at first; where nothing ever comes it fails, and the client hears of it."""
    coordinator.ask()
    (lost,) = coordinator.turn(451.0)
    iteration, at_ms, chunks = 5, 450.0, []
    while coordinator.gateway.last().kind == "accepted" and iteration < 300:
        at_ms += 10.0
        if at_ms >= iteration * PERIOD_MS + BUSY_MS:
            coordinator.trains(iteration)
            iteration += 1
        chunks += coordinator.turn(at_ms)
    assert {chunk.request for chunk in chunks} == {lost.request}
    assert len(chunks) > 1
    assert coordinator.gateway.last().reason == "training"
    assert coordinator.service.turn() is None
    coordinator.ran(chunks[-1], token=1)  # too late: it changes nothing
    assert coordinator.gateway.last().reason == "training"


def test_one_that_training_leaves_no_place_waits_until_there_is_one_again(coordinator: Coordinator) -> None:
    """For a while training leaves no bubble that would hold a chunk; what was accepted is not lost by it."""
    coordinator.ask(tokens=90)
    for iteration in range(5, 35):
        coordinator.trains(iteration, lasts_ms=97.0)
        chunks = coordinator.turn(coordinator.now_ms + 1)
        for chunk in chunks:
            coordinator.service.handle(0, ChunkLate(request=chunk.request, done=0, why="late"))
    assert (chunks, coordinator.service.waiting) == ([], 0), "the bubbles to come hold nothing"
    assert coordinator.gateway.kinds() == ["accepted"]
    for iteration in range(35, 60):
        coordinator.trains(iteration)
        chunks = chunks or coordinator.turn(coordinator.now_ms + 1)
    coordinator.ran(chunks[0], token=1)
    assert coordinator.gateway.kinds() == ["accepted", "token", "done"]


def test_training_that_comes_later_moves_what_was_to_run(coordinator: Coordinator) -> None:
    coordinator.ask("first", tokens=90)
    coordinator.ask("second", tokens=80)
    coordinator.turn(451.0)
    assert coordinator.service.waiting == 1
    (chunk,) = coordinator.turn(530.0)
    assert chunk.begin_s == pytest.approx(0.54)
    coordinator.now_ms = 559.0  # no op has begun since: its rank waited for one, and gives the chunk back
    coordinator.service.handle(0, ChunkLate(request=chunk.request, done=0, why="late"))
    assert isinstance(coordinator.rank.sent[-1], Cancel)
    coordinator.trains(5, late_ms=60.0)  # its op ran from 560 to 600
    (again,) = coordinator.turn(601.0)
    assert again.request == chunk.request
    assert again.begin_s >= 0.599


def test_answers_end_at_their_stop_at_the_models_end_and_at_their_length(coordinator: Coordinator) -> None:
    for name, first in (("ended", 0), ("stopped", ord("b")), ("long", ord("c"))):
        coordinator.ask(name, tokens=8, max_tokens=3, stop=("b",))
        chunk = coordinator.turn(coordinator.now_ms + 1)[0]
        coordinator.ran(chunk, token=first, cache=CACHE)
    messages = {m.request: m for m in coordinator.gateway.sent if m.kind == "done"}  # type: ignore[attr-defined]
    assert (messages["ended"].finish, messages["ended"].completion_tokens) == ("stop", 0)  # type: ignore[attr-defined]
    assert messages["stopped"].finish == "stop"  # type: ignore[attr-defined]
    ((key, token, most),) = coordinator.decoder.started
    assert (token, most) == (ord("c"), 2)
    coordinator.service.handle_decoder({"request": key, "token": ord("d")})
    coordinator.service.handle_decoder({"request": key, "token": ord("e")})
    coordinator.service.handle_decoder({"request": key, "end": "length"})
    assert (coordinator.gateway.last().finish, coordinator.gateway.last().completion_tokens) == ("length", 3)


def test_withdrawn_and_left_free_what_they_hold(coordinator: Coordinator) -> None:
    coordinator.ask("a")
    coordinator.turn(451.0)
    coordinator.service.withdraw(coordinator.gateway, "a")
    assert coordinator.gateway.last().reason == "cancelled"
    assert isinstance(coordinator.rank.last(), Drop)
    coordinator.ask("b")
    coordinator.service.gateway_lost(coordinator.gateway)
    assert coordinator.service.counts.failed == {"cancelled": 2}
    assert coordinator.service.waiting == 0


def test_without_a_decoder_only_prefill_is_taken(coordinator: Coordinator) -> None:
    coordinator.ask("a", max_tokens=2)
    coordinator.ran(coordinator.turn(451.0)[0], token=1, cache=CACHE)
    coordinator.service.decoder_lost()
    assert coordinator.gateway.last().reason == "decode"
    coordinator.ask("b", max_tokens=2)
    assert (coordinator.gateway.last().kind, coordinator.gateway.last().reason) == (
        "refused",
        "invalid_prompt",
    )
    assert "meridian[decode]" in coordinator.gateway.last().message


def test_no_request_is_accepted_while_training_is_too_slow(coordinator: Coordinator) -> None:
    coordinator.service.plan.slowdown.paused = True
    coordinator.ask()
    assert (coordinator.gateway.last().reason, coordinator.service.counts.refused) == (
        "training_paused",
        {"training_paused": 1},
    )


def test_a_rank_that_leaves_fails_what_it_computed(coordinator: Coordinator) -> None:
    coordinator.ask()
    coordinator.turn(451.0)
    coordinator.service.detach(0, coordinator.rank)
    assert coordinator.gateway.last().reason == "training"
    coordinator.ask("b")
    assert (coordinator.gateway.last().kind, coordinator.gateway.last().reason) == ("refused", "no_bubble")


def test_one_who_goes_before_moves_a_chunk_that_was_sent(coordinator: Coordinator) -> None:
    coordinator.now_ms = 495.0
    coordinator.ask("low", tokens=90)  # it fits into the next bubble, from 540 on
    coordinator.now_ms = 520.0
    assert len(coordinator.turn(520.0)) == 1
    coordinator.ask("high", tokens=20, priority=1)
    assert [type(m) for m in coordinator.rank.sent] == [RunChunk, Cancel]
    chunks = coordinator.turn(521.0)
    assert [chunk.request.split("-")[1] for chunk in chunks][:1] == ["high"]


def test_one_that_moves_to_another_gpu_at_once_is_sent_there(tmp_path: Any) -> None:
    """Its rank there has nothing of it, even if by the new plan it begins now."""
    coordinator = Coordinator(tmp_path, cells=2)
    coordinator.ask()
    coordinator.turn(451.0)
    ((key, progress),) = coordinator.service._requests.items()
    rows = progress.placement.rows.copy()
    rows[:, GPU], rows[:, BEGIN] = 1, coordinator.now_ms
    moved = replace(progress.placement, pipeline=1, rows=rows)
    coordinator.service._moved(Moved(moved=(moved,)), coordinator.now_ms)
    assert [chunk.request for chunk in coordinator.turn(452.0, gpu=1)] == [key]
    assert isinstance(coordinator.ranks[0].last(), Drop)


@pytest.fixture
def stages(tmp_path: Any) -> Coordinator:
    """Two GPUs that hold a stage each."""
    return Coordinator(tmp_path, cells=2, pp_degree=2)


def second(**changes: Any) -> StageCache:
    """Where the second stage's cache lies."""
    return CACHE.model_copy(update={"rank": 1, "first_layer": 1, **changes})


def test_each_stage_gets_the_chunk_and_only_the_first_its_prompt(stages: Coordinator) -> None:
    stages.ask()
    stages.turn(451.0)
    (first,), (last,) = stages.chunks(0), stages.chunks(1)
    assert (first.tokens, last.tokens, len(first.ids), last.ids) == (40, 40, 40, ())
    assert last.begin_s >= first.begin_s + 0.001 + 0.0005 * 40 / 2
    assert (first.sampling, last.sampling is None) == (None, False)
    stages.ran(first)
    assert stages.gateway.kinds() == ["accepted"]
    stages.ran(last, token=1, gpu=1)
    assert stages.gateway.kinds() == ["accepted", "token", "done"]
    assert isinstance(stages.ranks[0].last(), Drop), "the first stage's cache is freed"


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["in order", "the last is heard first"])
def test_the_answer_names_the_caches_of_all_stages(stages: Coordinator, order: tuple[int, int]) -> None:
    stages.ask(hand_over=True)
    stages.turn(451.0)
    chunks = stages.chunks(0) + stages.chunks(1)
    for gpu in order:
        stages.ran(chunks[gpu], token=1 if gpu else None, cache=second() if gpu else CACHE, gpu=gpu)
    done = stages.gateway.last()
    assert [stage.rank for stage in done.kv_transfer_params.remote_stages] == [0, 1]
    assert not any(isinstance(message, Drop) for rank in stages.ranks for message in rank.sent)


def test_a_later_stage_that_was_late_goes_on_from_what_the_first_made(stages: Coordinator) -> None:
    stages.ask(tokens=16)
    stages.turn(451.0)
    first, last = *stages.chunks(0), *stages.chunks(1)
    stages.ran(first)
    stages.service.handle(1, ChunkLate(request=last.request, done=0, why="late"))
    assert stages.turn(stages.now_ms + 1) == [], "the first stage is done with it"
    again = stages.chunks(1)[-1]
    assert (again.done, again.tokens, len(stages.chunks(1))) == (0, 16, 2)
    stages.service.handle(1, ChunkLate(request=last.request, done=0, why="late"))
    (again,) = stages.turn(stages.now_ms + 10)  # what was handed on seems to be lost: it is made again
    stages.ran(again)
    stages.ran(stages.chunks(1)[-1], token=1, gpu=1)
    assert stages.gateway.last().kind == "done"


def test_chunks_that_the_first_stage_ran_ahead_are_not_run_again(stages: Coordinator) -> None:
    stages.ask(tokens=150)
    stages.turn(451.0)
    first, last = stages.chunks(0)[0], stages.chunks(1)[0]
    stages.ran(first)
    sent = len(stages.chunks(0))
    stages.service.handle(1, ChunkLate(request=last.request, done=0, why="late"))
    for iteration in range(5, 8):
        stages.trains(iteration)
        stages.turn(stages.now_ms + 1)
    assert stages.chunks(0)[sent:]
    assert {chunk.done for chunk in stages.chunks(0)[sent:]} == {first.tokens}
    pieces = {(chunk.done, chunk.tokens) for chunk in stages.chunks(1)}
    assert (0, first.tokens) in pieces
    assert {done for done, _ in pieces} == {0, first.tokens}


@pytest.mark.parametrize("why", ["withdrawn", "rank"])
def test_what_ends_early_is_freed_on_all_stages(stages: Coordinator, why: str) -> None:
    stages.ask()
    stages.turn(451.0)
    if why == "withdrawn":
        stages.service.withdraw(stages.gateway, "a")
        assert isinstance(stages.ranks[1].last(), Drop)
    else:
        stages.service.detach(1, stages.ranks[1])
    assert isinstance(stages.rank.last(), Drop)
    assert stages.gateway.last().kind == "failed"
    assert stages.service.waiting == 0


def test_a_cache_that_is_gone_on_one_stage_is_made_again_on_all(stages: Coordinator) -> None:
    stages.ask(tokens=16, hand_over=True)
    stages.turn(451.0)
    first, last = *stages.chunks(0), *stages.chunks(1)
    stages.ran(last, token=1, cache=second(), gpu=1)
    stages.service.handle(0, ChunkLate(request=first.request, done=0, why="gone"))
    stages.turn(stages.now_ms + 10)
    again, other = stages.chunks(0)[-1], stages.chunks(1)[-1]
    assert (again.done, other.done, len(stages.chunks(0)), len(stages.chunks(1))) == (0, 0, 2, 2)
    stages.ran(again, cache=CACHE)
    stages.ran(other, token=1, cache=second(block_ids=(7,)), gpu=1)
    done = stages.gateway.last()
    assert done.kv_transfer_params.remote_stages[1].block_ids == (7,)


def test_another_schedule_is_learned_before_anything_has_a_place_in_it(coordinator: Coordinator) -> None:
    """What was accepted keeps its turn, and is placed by what the new iterations showed."""
    coordinator.ask()
    assert coordinator.turn(451.0)
    coordinator.service.handle(0, OpsChanged(since=5, ops=1))
    assert coordinator.rank.kinds()[-1] == "cancel"
    assert not coordinator.service.plan.knows
    coordinator.ask("b")
    assert (coordinator.gateway.last().kind, coordinator.gateway.last().reason) == ("refused", "no_bubble")
    chunks: list[RunChunk] = []
    for iteration in range(4, 8):  # the first one is of the old schedule
        assert not chunks
        coordinator.trains(iteration, lasts_ms=80.0 if iteration > 4 else BUSY_MS)
        chunks = coordinator.turn(iteration * PERIOD_MS + 81.0)
    assert chunks
    assert chunks[0].begin_s * 1e3 >= 7 * PERIOD_MS + 80.0, "in a bubble of the new schedule"
    assert chunks[0].until_s <= 0.8


def test_a_withdrawn_request_gives_its_place_back_while_the_schedule_is_learned(
    coordinator: Coordinator,
) -> None:
    coordinator.ask()
    coordinator.service.handle(0, OpsChanged(since=5, ops=1))
    coordinator.service.withdraw(coordinator.gateway, "a")
    assert coordinator.gateway.last().reason == "cancelled"
    for iteration in range(5, 9):
        coordinator.trains(iteration)
    assert not coordinator.turn(coordinator.now_ms + 1.0)
    assert coordinator.service.waiting == 0


def test_a_coordinator_knows_what_it_delivered_when_the_gateway_is_gone(coordinator: Coordinator) -> None:
    """By this the site charges what a web process that died had delivered."""
    coordinator.ask("whole")
    (chunk,) = coordinator.turn(451.0)
    coordinator.ran(chunk, token=ord("y"))
    coordinator.ask("cut", max_tokens=9)
    coordinator.ask("waits", tokens=60)
    (chunk, *_) = coordinator.turn(coordinator.now_ms + 50.0) or coordinator.turn(600.0)
    coordinator.ran(chunk, token=ord("y"), cache=CACHE)
    coordinator.service.handle_decoder({"request": chunk.request, "token": ord("z")})
    ttft_ms = coordinator.gateway.sent[-2].ttft_ms  # type: ignore[attr-defined]
    coordinator.service.gateway_lost(coordinator.gateway)
    other = Box()
    coordinator.service.account(other, ["whole", "cut", "waits", "never"])
    fates = {message.request: (message.fate, message.prompt_tokens, message.tokens) for message in other.sent}  # type: ignore[attr-defined]
    assert fates == {
        "whole": ("done", 40, 1),
        "cut": ("cancelled", 40, 2),
        "waits": ("cancelled", 60, 0),
        "never": ("unknown", 0, 0),
    }
    assert [message.is_delivered for message in other.sent] == [True, True, False, False]  # type: ignore[attr-defined]
    assert other.sent[1].ttft_ms == ttft_ms  # type: ignore[attr-defined]
