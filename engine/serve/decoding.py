"""The process that decodes for a coordinator: fetches caches from the ranks, then makes token after token.

A child of the coordinator, joined to it by a socket; JSON lines. In: {decode, params, token, most, sampling}
and {stop}. Out: {request, token}, {request, end: stop | length}, {request, failed}. All answers that are
under way get a token in turn, so that none waits for another. It never sees a prompt.

The model is loaded once the first request's cache is here: a coordinator that nobody asks holds none. Caches
of other requests are fetched meanwhile, as their leases do not wait.
"""

import contextlib
import importlib.util
import json
import os
import select
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from engine.control.handshake import Identity
from engine.prefill.handover import KvTransferParams
from engine.prefill.messages import Sampling

LOOK_S = 0.05  # whether the model is loaded
NICE = 10  # training goes first
MISSING = "decoding needs the package transformers, which is not installed: pip install 'meridian[decode]'"


def can_decode() -> bool:
    """Whether transformers is installed; it is not imported."""
    return importlib.util.find_spec("transformers") is not None


def fork_decoder(folder: Path, me: Identity, *, dtype: str) -> tuple[int, socket.socket]:
    """Start the process; its pid, and the socket to talk to it. It ends when that closes.

    For a process without other threads and event loops.
    """
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid:
        theirs.close()
        return pid, ours
    ours.close()
    _become(folder, me, dtype, theirs)


def _become(folder: Path, me: Identity, dtype: str, connected: socket.socket) -> NoReturn:
    try:
        os.nice(NICE)
        from engine.serve.decode import DecodeWorker

        _Decoder(DecodeWorker(folder, me, dtype=dtype), connected).run()
    except BaseException as error:
        # By name alone: what it says could quote what a tenant sent.
        print(f"the decoder ended: {type(error).__name__}", file=sys.stderr, flush=True)  # noqa: T201
        os._exit(1)
    os._exit(0)


@dataclass(slots=True)
class _Decoder:
    worker: Any
    connected: socket.socket
    under_way: dict[str, Iterator[int]] = field(default_factory=dict)
    rest: bytes = b""
    loading: threading.Thread | None = None

    def run(self) -> None:
        while self._hear():
            if self._loads():
                continue
            for request in list(self.under_way):
                self._step(request)

    def _load(self) -> None:
        """A failure is met again, and told, by who asks for the model next."""
        with contextlib.suppress(Exception):
            _ = self.worker.model

    def _loads(self) -> bool:
        return self.loading is not None and self.loading.is_alive()

    def _patience_s(self) -> float | None:
        if not self.under_way:
            return None
        return LOOK_S if self._loads() else 0.0

    def _hear(self) -> bool:
        """Take what has come; waits for it where nothing is under way, or can be. False at the end."""
        while select.select([self.connected], [], [], self._patience_s())[0]:
            data = self.connected.recv(1 << 16)
            if not data:
                return False
            *lines, self.rest = (self.rest + data).split(b"\n")
            for line in lines:
                self._handle(json.loads(line))
        return True

    def _handle(self, message: dict[str, Any]) -> None:
        if "stop" in message:
            self.under_way.pop(message["stop"], None)
            return
        request = message["decode"]
        try:
            cache = self.worker.fetch(KvTransferParams.model_validate(message["params"]))
        except Exception as error:
            self._send({"request": request, "failed": type(error).__name__})
            return
        sampling = Sampling.model_validate(message["sampling"])
        self.under_way[request] = self.worker.stream(
            cache, message["token"], most=message["most"], sampling=sampling
        )
        # After the fetch: the import of transformers keeps the interpreter from it for seconds.
        if self.loading is None:
            self.loading = threading.Thread(target=self._load, name="load", daemon=True)
            self.loading.start()

    def _step(self, request: str) -> None:
        try:
            token = next(self.under_way[request])
        except StopIteration as ended:
            del self.under_way[request]
            self._send({"request": request, "end": ended.value})
            return
        except Exception as error:
            del self.under_way[request]
            self._send({"request": request, "failed": type(error).__name__})
            return
        self._send({"request": request, "token": token})

    def _send(self, message: dict[str, Any]) -> None:
        self.connected.sendall(json.dumps(message).encode() + b"\n")
