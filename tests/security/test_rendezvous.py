"""torch's rendezvous store has no proof of its own: it listens where it is told alone, and outlives noise."""

import os
import socket
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from engine.control.listening import listen
from engine.train import mesh
from tests.waiting import LIMIT_S


def _store() -> tuple[Any, int]:
    """The store as the first rank opens it, on 127.0.0.1."""
    listener = listen("127.0.0.1", None, 0)
    port = listener.getsockname()[1]
    spec: Any = SimpleNamespace(rendezvous_host="127.0.0.1", run="run", generation=1, attempt=1)
    return mesh._store(spec, port, listener.detach()), port


def test_it_listens_on_its_address_alone() -> None:
    store, port = _store()
    store.set("a", "1")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=LIMIT_S)


def test_noise_and_silence_do_not_stop_it() -> None:
    store, port = _store()
    with ExitStack() as open_:
        for number in range(40):
            stranger = open_.enter_context(socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S))
            if number % 2:
                stranger.sendall(os.urandom(500))
        store.set("a", "1")
        assert store.get("a") == b"1"
