"""A KV cache goes to who knows the key of its request, and comes from who knows it: a key is of one."""

import secrets
import socket
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from engine.prefill.handover import DecodeReceiver
from engine.serve.kv_push import KvPusher
from engine.serve.pipeline import PrefillPipeline, PrefillResult
from engine.serve.prefill_wire import PushCache
from tests.runtime.prefill.checkpoints import pipeline, prompt, save
from tests.runtime.prefill.receiver import HELLO, Receiver
from tests.waiting import LIMIT_S, until

KEY, OTHER = secrets.token_hex(32), secrets.token_hex(32)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> PrefillPipeline:
    return pipeline(save(Path(tmp_path_factory.mktemp("credentials"))), 1)


def pushed(run: PrefillPipeline, port: int, *, request: str = "mine", key: str = KEY) -> str:
    """Push a prompt's cache; why it failed, or an empty string."""
    done = run.prefill("own", prompt(9), chunks=[9], lease_s=LIMIT_S)
    assert isinstance(done, PrefillResult)
    (stage,) = run.stages
    order = PushCache(
        request="own",
        stage=0,
        stages=1,
        blocks=stage.pool.offer("own", lease_s=LIMIT_S),
        token=done.first_token,
        to=DecodeReceiver(host="127.0.0.1", port=port, request=request, key=key),
    )
    over, errors = threading.Event(), []

    def report(error: str) -> None:
        errors.append(error)
        over.set()

    with closing(KvPusher(stage.pool, patience_s=LIMIT_S)) as pusher:
        pusher.push(order, report)
        assert over.wait(LIMIT_S)
    assert stage.pool.bytes_in_use == 0, "whatever came of it, the memory is training's again"
    return str(errors[0])


def test_the_right_key_is_taken_once(run: PrefillPipeline) -> None:
    with closing(Receiver({"mine": KEY})) as receiver:
        assert pushed(run, receiver.port) == ""
        assert pushed(run, receiver.port) != ""
        assert receiver.refusals == ["nobody waits for it"]


def test_a_sender_with_a_wrong_key_is_refused(run: PrefillPipeline) -> None:
    """The receiver proves itself with what the sender has, and still does not take its cache."""
    with closing(Receiver({"mine": KEY}, proves_with=OTHER)) as receiver:
        assert "key of the request" in pushed(run, receiver.port, key=OTHER)
        assert receiver.refusals == ["wrong proof"]
        assert receiver.parts == {}


def test_a_receiver_with_a_wrong_key_gets_nothing(run: PrefillPipeline) -> None:
    with closing(Receiver({"mine": OTHER})) as receiver:
        assert "key of the request" in pushed(run, receiver.port)
        assert receiver.parts == {}
        assert receiver.heard == [], "the sender has left before it proved anything"


@pytest.mark.parametrize(
    ("request_name", "key"), [("mine", OTHER), ("another", KEY)], ids=["mine", "another"]
)
def test_the_key_of_another_request_is_of_no_use(run: PrefillPipeline, request_name: str, key: str) -> None:
    with closing(Receiver({"mine": KEY, "another": OTHER})) as receiver:
        assert "key of the request" in pushed(run, receiver.port, request=request_name, key=key)
        assert receiver.parts == {}


def test_what_was_overheard_is_of_no_use_again(run: PrefillPipeline) -> None:
    with closing(Receiver({"mine": KEY})) as receiver:
        assert pushed(run, receiver.port) == ""
        receiver.parts.clear()  # as if it still waited
        ((hello, proof),) = receiver.heard
        assert len(hello) == HELLO.size
        with socket.create_connection(("127.0.0.1", receiver.port), timeout=LIMIT_S) as connected:
            connected.sendall(hello)
            connected.recv(57 + 32, socket.MSG_WAITALL)
            connected.sendall(proof)
            assert connected.recv(1) == b"\5"
        until(lambda: receiver.refusals == ["wrong proof"])
        assert receiver.parts == {}


def test_the_secret_of_the_run_is_not_in_it() -> None:
    """A rank needs nothing of its run to push: neither its identity nor its secret comes into the pusher."""
    parameters: Any = KvPusher.__init__.__annotations__
    assert set(parameters) == {"pool", "tls", "patience_s", "return"}
