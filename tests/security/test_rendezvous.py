"""Strangers at every port of a run (store, gloo, transport): it trains as without them."""

import os
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import psutil

from engine.job.launch import single_machine
from engine.train.boundary import KEY
from tests.runtime.jobs import Run, job
from tests.waiting import LIMIT_S, until

STEPS_AFTER = 5
SET, DELETE = 1, 8  # numbers of requests to a TCPStore
# Rank 0 and 1 talk by gloo, rank 1 and 2 over the transport; all meet at the store.
RANKS: dict[str, Any] = {"pipelines": 1, "steps": 1_000_000}
LINES = b'{"kind":"set","key":"%s","value":"Mg=="}\n{"kind":"delete","key":"ready/count"}\n' % KEY.encode()


def listening(run: Run) -> set[tuple[str, int]]:
    """Where the processes of a run listen."""
    pids = {event["pid"] for event in run.of_kind("rank") if event["pid"]}
    hosts = {psutil.Process(pid).ppid() for pid in pids} - {os.getpid()}
    return {
        (connection.laddr.ip, connection.laddr.port)
        for pid in pids | hosts
        for connection in psutil.Process(pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def of_torch(*requests: tuple[int, *tuple[str, ...]]) -> bytes:
    """Requests to a TCPStore of torch: its magic number, then the number of each request and its texts."""
    message = b"\0" + (0x3C85F7CE).to_bytes(4, "little")
    for number, *texts in requests:
        message += bytes([number]) + b"".join(len(x).to_bytes(8, "little") + x.encode() for x in texts)
    return message


def that_it_ends() -> bytes:
    """To the store of torch that a run had: the run ends after two iterations, and its keys are gone."""
    spec = single_machine(job(**RANKS), run="test", log_dir="")
    of_attempt = f"/{spec.run}/{spec.generation}/{spec.attempt}"
    return of_torch((SET, f"{of_attempt}/{KEY}", "2"), (DELETE, f"{of_attempt}/ready/count"))


def shout(address: tuple[str, int], keep: ExitStack) -> None:
    """Say what a member would, noise, and nothing; the connections stay open."""
    for text in (that_it_ends(), LINES, b"MERIDWAN" + os.urandom(500), bytes(8), os.urandom(5000), b""):
        stranger = keep.enter_context(socket.create_connection(address, timeout=LIMIT_S))
        with suppress(ConnectionError):
            stranger.sendall(text)


def losses(run: Run) -> list[float]:
    return [event["loss"] for event in run.of_kind("step")]


def test_strangers_at_every_port_of_a_run_change_nothing(tmp_path: Path) -> None:
    attacked = Run(job(**RANKS), str(tmp_path))
    try:
        assert attacked.training.wait(LIMIT_S)
        with ExitStack() as keep:
            addresses = listening(attacked)
            assert len(addresses) >= 4  # the store, gloo twice, the transport
            for address in addresses:
                shout(address, keep)
            until_step = len(losses(attacked)) + STEPS_AFTER
            until(lambda: len(losses(attacked)) >= until_step or attacked.group.wait(0))
        assert len(losses(attacked)) >= until_step, "it ended"
    finally:
        attacked.group.stop(0.0)
    undisturbed = Run(job(**RANKS | {"steps": until_step}), str(tmp_path))
    assert losses(attacked)[:until_step] == undisturbed.result()["losses"]
