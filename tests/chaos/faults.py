"""The faults of `make chaos`: each begins at once, and ends by itself after a while."""

import json
import os
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import psutil
import redis

from tests.chaos.clocks import move
from tests.demo.harness import Demo
from tests.demo_alone.own import agent_of, fill, process_of, rank_processes, server_pid, shim_of

NODES = ("us-west-1", "us-central-1", "us-east-1")
PARTS = ("web", "control", "search", "beat", "ingest")
SERVERS = ("valkey", "postgres")
CLOCKS = ("site", *NODES)
PLENTY = 2**30  # bytes of the broker, as webapp/servers/valkey.py gives it


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: what it is called, what it does, and for how many seconds where it lasts."""

    name: str
    strike: Callable[[Demo, float], None]
    longest_s: float = 0.0
    needs_recovery: bool = False  # it kills ranks
    empties: bool = False  # what the broker holds is gone

    def __call__(self, demo: Demo, draw: random.Random) -> str:
        """Strike; returns what was done, or why nothing was."""
        seconds = draw.uniform(1.0, self.longest_s) if self.longest_s else 0.0
        try:
            self.strike(demo, seconds)
        except (AssertionError, psutil.Error, OSError, redis.RedisError, KeyError, ValueError) as error:
            return f"{self.name}: nothing to strike ({str(error).splitlines()[0] if str(error) else error!r})"
        return f"{self.name} {seconds:.1f} s" if seconds else self.name


def _hold(process: psutil.Process, seconds: float) -> None:
    process.suspend()
    try:
        time.sleep(seconds)
    finally:
        with suppress(psutil.Error):
            process.resume()


def _broker(demo: Demo) -> "redis.Redis":
    state = json.loads((demo.var / "servers.json").read_text())
    return redis.Redis.from_url(state["valkey"]["url"], decode_responses=True, socket_timeout=10)


def _full(demo: Demo, seconds: float) -> None:
    with _broker(demo) as broker:
        broker.config_set("maxmemory", 1)
    time.sleep(seconds)
    for _ in range(60):  # it may be down just now; started again it has its own limit
        with suppress(redis.RedisError, OSError, KeyError, ValueError), _broker(demo) as broker:
            broker.config_set("maxmemory", PLENTY)
            return
        time.sleep(0.5)


def _emptied(demo: Demo, _: float) -> None:
    with _broker(demo) as broker:
        broker.flushall()
        for user in broker.acl_users():
            if user.startswith("node-"):
                broker.acl_deluser(user)


def _full_disk(demo: Demo, seconds: float) -> None:
    if not os.path.ismount(demo.var.parent):
        raise AssertionError("the demo has no disk of its own")
    big = demo.var.parent / "big"
    fill(big)
    try:
        time.sleep(seconds)
    finally:
        big.unlink(missing_ok=True)


def _clock(name: str, offset_s: int) -> Callable[[Demo, float], None]:
    """A clock that jumps, and back after a while."""

    def strike(_: Demo, seconds: float) -> None:
        move(name, offset_s)
        time.sleep(seconds)
        move(name, 0)

    return strike


def _rank(demo: Demo, _: float) -> None:
    ranks = rank_processes(demo)
    if not ranks:
        raise AssertionError("no rank lives")
    random.choice(ranks).kill()


def _shim(node: str) -> Callable[[Demo, float], None]:
    return lambda demo, _: shim_of(demo, node).kill()


def _host(node: str) -> Callable[[Demo, float], None]:
    return lambda demo, _: shim_of(demo, node).children()[0].kill()


def _supervisor(demo: Demo, _: float) -> None:
    """Kill it, and start it again as a service manager does: anew where it ends at once.

    A web process that hangs keeps the port, for example, until it goes on and ends.
    """
    assert demo.process
    demo.process.send_signal(signal.SIGKILL)
    demo.process.wait(10)
    deadline = time.monotonic() + 60
    while True:
        try:
            demo.start()
            return
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1.0)


def _signal(node: str, number: signal.Signals) -> Callable[[Demo, float], None]:
    return lambda demo, _: os.kill(agent_of(demo, node).pid, number)


def _kill_part(part: str) -> Callable[[Demo, float], None]:
    return lambda demo, _: process_of(demo, part).kill()


def _pause_part(part: str) -> Callable[[Demo, float], None]:
    return lambda demo, seconds: _hold(process_of(demo, part), seconds)


def _kill_server(name: str) -> Callable[[Demo, float], None]:
    return lambda demo, _: psutil.Process(server_pid(demo, name)).kill()


def _pause_server(name: str) -> Callable[[Demo, float], None]:
    return lambda demo, seconds: _hold(psutil.Process(server_pid(demo, name)), seconds)


def _pause_agent(node: str) -> Callable[[Demo, float], None]:
    return lambda demo, seconds: _hold(agent_of(demo, node), seconds)


FAULTS: tuple[Fault, ...] = (
    *(Fault(name=f"kill {part}", strike=_kill_part(part)) for part in PARTS),
    *(Fault(name=f"pause {part}", strike=_pause_part(part), longest_s=15) for part in PARTS),
    *(Fault(name=f"kill {name}", strike=_kill_server(name)) for name in SERVERS),
    *(Fault(name=f"pause {name}", strike=_pause_server(name), longest_s=15) for name in SERVERS),
    *(Fault(name=f"kill agent {node}", strike=_signal(node, signal.SIGKILL)) for node in NODES),
    *(Fault(name=f"end agent {node}", strike=_signal(node, signal.SIGTERM)) for node in NODES),
    *(Fault(name=f"pause agent {node}", strike=_pause_agent(node), longest_s=25) for node in NODES),
    Fault(name="fill the broker", strike=_full, longest_s=40),
    Fault(name="empty the broker", strike=_emptied, empties=True),
    Fault(name="fill the disk", strike=_full_disk, longest_s=30),
    *(
        Fault(name=f"clock of {name} {hours:+d} h", strike=_clock(name, hours * 3600), longest_s=30)
        for name in CLOCKS
        for hours in (-1, 1)
    ),
    Fault(name="kill the supervisor", strike=_supervisor),
    Fault(name="kill a rank", strike=_rank, needs_recovery=True),
    *(Fault(name=f"kill the shim of {node}", strike=_shim(node), needs_recovery=True) for node in NODES),
    *(Fault(name=f"kill the host of {node}", strike=_host(node), needs_recovery=True) for node in NODES),
)
