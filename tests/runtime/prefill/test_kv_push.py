"""A KV cache is sent to a receiver that speaks docs/dev/kv-handover.md, and to nobody else."""

import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from engine.inputs import parse
from engine.prefill.handover import DecodeReceiver
from engine.serve.kv_pool import Freed
from engine.serve.kv_push import KvPusher
from engine.serve.pipeline import PrefillPipeline, PrefillResult
from engine.serve.prefill_wire import PushCache
from tests.runtime.prefill.checkpoints import BLOCK, model, pipeline, prompt, save
from tests.runtime.prefill.receiver import HELLO, Receiver
from tests.waiting import LIMIT_S, until

KEY, OTHER_KEY = secrets.token_hex(32), secrets.token_hex(32)
STAGES = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> PrefillPipeline:
    return pipeline(save(tmp_path_factory.mktemp("pushed")), STAGES)


@pytest.fixture
def pushers(run: PrefillPipeline) -> Iterator[list[KvPusher]]:
    all_pushers = [KvPusher(stage.pool, patience_s=LIMIT_S) for stage in run.stages]
    yield all_pushers
    for pusher in all_pushers:
        pusher.close()
    assert sum(stage.pool.bytes_in_use for stage in run.stages) == 0


def pushed(
    run: PrefillPipeline,
    pushers: list[KvPusher],
    port: int,
    *,
    request: str = "r-1",
    key: str = KEY,
    ids: list[int] | None = None,
) -> tuple[PrefillResult, list[str]]:
    """Prefill a prompt and push its cache from all stages: its result, and what went wrong by stage."""
    tokens = ids or prompt(20)
    done = run.prefill("own", tokens, chunks=[5, len(tokens) - 5], lease_s=LIMIT_S)
    assert isinstance(done, PrefillResult)
    to = DecodeReceiver(host="127.0.0.1", port=port, request=request, key=key)
    errors: list[str | None] = [None] * STAGES
    held = [0] * STAGES
    over = [threading.Event() for _ in pushers]
    for stage, pusher in enumerate(pushers):

        def report(error: str, stage: int = stage) -> None:
            errors[stage], held[stage] = error, run.stages[stage].pool.bytes_in_use
            over[stage].set()

        order = PushCache(
            request="own",
            stage=stage,
            stages=STAGES,
            blocks=run.stages[stage].pool.offer("own", lease_s=LIMIT_S),
            token=done.first_token,
            to=to,
        )
        pusher.push(order, report)
    assert all(event.wait(LIMIT_S) for event in over)
    assert not any(held), "who hears that it ended finds the cache freed"
    return done, [error or "" for error in errors]


@pytest.mark.parametrize("tokens", [7, BLOCK * 4, 61])
def test_a_receiver_has_transformers_own_past_key_values(
    run: PrefillPipeline, pushers: list[KvPusher], tokens: int
) -> None:
    before = [stage.pool.freed[Freed.HANDED_OVER] for stage in run.stages]
    ids = prompt(tokens)
    with closing(Receiver({"r-1": KEY})) as receiver:
        done, errors = pushed(run, pushers, receiver.port, ids=ids)
    assert errors == [""] * STAGES
    with torch.inference_mode():
        theirs = model()(torch.tensor([ids]), use_cache=True)
    layers = receiver.layers("r-1")
    assert len(layers) == model().config.num_hidden_layers
    for (keys, values), layer in zip(layers, theirs.past_key_values.layers, strict=True):
        torch.testing.assert_close(keys, layer.keys[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(values, layer.values[0], rtol=1e-5, atol=1e-5)
    assert {shape["next_token"] for shape, _ in receiver.parts.values()} == {done.first_token}
    assert done.first_token == int(theirs.logits[0, -1].argmax())
    assert [stage.pool.freed[Freed.HANDED_OVER] for stage in run.stages] == [one + 1 for one in before]


def test_the_document_says_how_long_the_messages_are() -> None:
    text = (Path(__file__).parents[3] / "docs" / "dev" / "kv-handover.md").read_text()
    assert f"`hello`, {HELLO.size} bytes" in text


def test_a_receiver_that_has_another_key_gets_nothing(run: PrefillPipeline, pushers: list[KvPusher]) -> None:
    with closing(Receiver({"r-1": KEY}, proves_with=OTHER_KEY)) as receiver:
        _, errors = pushed(run, pushers, receiver.port)
    assert errors == ["it does not prove that it knows the key of the request"] * STAGES
    assert receiver.parts == {}


def test_a_receiver_that_refuses_is_quoted(run: PrefillPipeline, pushers: list[KvPusher]) -> None:
    with closing(Receiver({"r-1": KEY}, refuses="no room\0" + "x" * 500)) as receiver:
        _, errors = pushed(run, pushers, receiver.port)
    assert errors == ["no room " + "x" * 192] * STAGES


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" + b" " * 100])
def test_what_is_no_receiver_is_told_apart(
    run: PrefillPipeline, pushers: list[KvPusher], says: bytes
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            for _ in range(STAGES):
                connected, _ = listening.accept()
                with connected:
                    connected.recv(HELLO.size)
                    connected.sendall(says)

        threading.Thread(target=answer, daemon=True).start()
        _, errors = pushed(run, pushers, listening.getsockname()[1])
    assert all(error and "cache" not in error for error in errors), errors
    assert all(stage.pool.bytes_in_use == 0 for stage in run.stages)


def test_a_receiver_that_is_away(run: PrefillPipeline, pushers: list[KvPusher]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    _, errors = pushed(run, pushers, port)
    assert errors == ["no connection: Connection refused"] * STAGES


def test_a_receiver_that_hangs_costs_its_patience_and_no_more(run: PrefillPipeline) -> None:
    pushers = [KvPusher(stage.pool, patience_s=0.05) for stage in run.stages]
    with socket.create_server(("127.0.0.1", 0)) as silent:
        _, errors = pushed(run, pushers, silent.getsockname()[1])
    assert errors == ["no connection: TimeoutError"] * STAGES
    assert sum(stage.pool.bytes_in_use for stage in run.stages) == 0
    for pusher in pushers:
        pusher.close()


def test_the_end_of_a_rank_does_not_wait_for_a_receiver(run: PrefillPipeline) -> None:
    """Nothing here is timed: with the patience of a day, a wait would end the test."""
    done = run.prefill("own", prompt(9), chunks=[9], lease_s=LIMIT_S)
    assert isinstance(done, PrefillResult)
    pool = run.stages[0].pool
    pusher = KvPusher(pool, patience_s=86_400)
    errors: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        to = DecodeReceiver(host="127.0.0.1", port=silent.getsockname()[1], request="r", key=KEY)
        blocks = pool.offer("own", lease_s=LIMIT_S)
        order = PushCache(request="own", stage=0, stages=1, blocks=blocks, token=1, to=to)
        pusher.push(order, errors.append)
        until(lambda: pusher._open)
        pusher.close()
    assert errors
    for stage in run.stages:
        stage.pool.free("own", Freed.ABORTED)


def test_a_lease_that_has_ended_is_said(run: PrefillPipeline, pushers: list[KvPusher]) -> None:
    to = DecodeReceiver(host="127.0.0.1", port=1, request="r", key=KEY)
    reports: list[str] = []
    over = threading.Event()
    order = PushCache(request="never", stage=0, stages=1, blocks=(0,), token=1, to=to)

    def report(error: str) -> None:
        reports.append(error)
        over.set()

    pushers[0].push(order, report)
    assert over.wait(LIMIT_S)
    assert reports == ["its lease ended"]


@pytest.mark.parametrize(
    "changes", [{"host": "localhost"}, {"port": 0}, {"key": "a" * 63}, {"key": "A" * 64}, {"request": ""}]
)
def test_a_receiver_is_an_address_and_a_key(changes: dict[str, object]) -> None:
    from engine.errors import InputError

    good = {"host": "127.0.0.1", "port": 1, "request": "r", "key": KEY}
    assert KEY not in repr(parse(DecodeReceiver, good))
    with pytest.raises(InputError) as error:
        parse(DecodeReceiver, good | changes)
    assert error.value.field == next(iter(changes))
