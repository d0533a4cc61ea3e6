"""Network namespaces, one a data centre, joined by a process that forwards packets with delay and rate.

Node n of data centre d has the address 10.77.(d + 1).(n + 1). Between nodes of one data centre packets go
over its loopback device, without delay; between two, every directed pair of nodes has a rate of its own.

Needs root and /dev/net/tun. Segmentation and checksums are left to the receiving side of each device (the
header of virtio goes through untouched), so packets of up to 64 KiB pass and one core forwards gigabits.
"""

import contextlib
import ctypes
import fcntl
import heapq
import itertools
import multiprocessing
import os
import select
import signal
import struct
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ctypes import Array

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CSUM_TSO4_TSO6 = 0x01 | 0x02 | 0x04
_VNET_HEADER_BYTES = 10
_PR_SET_PDEATHSIG = 1
_CLONE_NEWNET = 0x40000000
_NETWORK, _PREFIX = "10.77", "mwan"
DEVICE = "wan"
# A queue before the cap holds so many seconds of it; what is beyond is dropped.
_QUEUE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Forwarded:
    """What the forwarder did so far: packets, their bytes, packets dropped, and its seconds of CPU."""

    packets: int
    nbytes: int
    dropped: int
    cpu_s: float

    def since(self, before: "Forwarded") -> "Forwarded":
        """What it did from `before` on."""
        return Forwarded(
            packets=self.packets - before.packets,
            nbytes=self.nbytes - before.nbytes,
            dropped=self.dropped - before.dropped,
            cpu_s=self.cpu_s - before.cpu_s,
        )


class Wan:
    """The data centres' namespaces, by number of the data centre, and the process between them."""

    def __init__(self, namespaces: tuple[str, ...], counts: "Array[Any]", forwarder_pid: int) -> None:
        self.namespaces = namespaces
        self._counts, self._forwarder_pid = counts, forwarder_pid

    def run(self, dc: int, *command: str) -> list[str]:
        """`command` as it is to be started inside a data centre."""
        return ["ip", "netns", "exec", self.namespaces[dc], *command]

    def limit_window(self, nbytes: int) -> None:
        """Let TCP's receive buffers grow to `nbytes`; the window is some share of that."""
        for name in self.namespaces:
            _sysctl(name, f"net.ipv4.tcp_rmem=4096 {min(nbytes, 131072)} {nbytes}")

    def forwarded(self) -> Forwarded:
        """The forwarder's figures so far."""
        packets, nbytes, dropped = self._counts
        return Forwarded(
            packets=packets, nbytes=nbytes, dropped=dropped, cpu_s=cpu_seconds(self._forwarder_pid)
        )


def address_of(dc: int, node: int) -> str:
    """The address of a node of a data centre, both counted from 0."""
    return f"{_NETWORK}.{dc + 1}.{node + 1}"


def enter(namespace: str) -> None:
    """Take this thread, and the processes that it starts, into a network namespace."""
    with open(f"/run/netns/{namespace}", "rb") as there:
        _set_namespace(there.fileno(), namespace)


@contextlib.contextmanager
def wan(*, delay_s: float, pair_bytes_per_s: float, nodes: Sequence[int]) -> Iterator[Wan]:
    """A WAN for the time of the context.

    delay_s : one way.
    pair_bytes_per_s : most of each directed pair of addresses.
    nodes : of each data centre.
    """
    _delete_left_over()
    names = tuple(f"{_PREFIX}{os.getpid()}-{dc}" for dc in range(len(nodes)))
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    counts = context.RawArray("Q", 3)
    with contextlib.ExitStack() as stack:
        for name in names:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
        forwarder = context.Process(
            target=_forward, args=(theirs, names, delay_s, pair_bytes_per_s, counts), daemon=True
        )
        forwarder.start()
        stack.callback(forwarder.join, 10)
        stack.callback(forwarder.kill)
        if not ours.poll(20):
            raise RuntimeError("the forwarder did not start")
        ours.recv()
        for dc, name in enumerate(names):
            _set_up(name, dc, nodes)
        assert forwarder.pid is not None
        yield Wan(names, counts, forwarder.pid)


def _delete_left_over() -> None:
    """Delete the namespaces of processes that were killed before they could."""
    for path in Path("/run/netns").glob(f"{_PREFIX}*-*"):
        owner = path.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdigit() and not Path("/proc", owner).exists():
            _ip("netns", "delete", path.name)


def _set_up(name: str, dc: int, nodes: Sequence[int]) -> None:
    _sysctl(name, "net.ipv6.conf.all.disable_ipv6=1")
    for node in range(nodes[dc]):
        _ip("-n", name, "address", "add", f"{address_of(dc, node)}/24", "dev", DEVICE)
    _ip("-n", name, "link", "set", "lo", "up")
    _ip("-n", name, "link", "set", DEVICE, "up", "txqueuelen", "10000")
    for other in range(len(nodes)):
        if other != dc:
            # The kernel's default may be bbr; the window shall decide, as in the paper.
            _ip("-n", name, "route", "add", f"{_NETWORK}.{other + 1}.0/24", "dev", DEVICE, "congctl", "cubic")
    _sysctl(name, "net.ipv4.tcp_wmem=4096 262144 33554432")
    # Else every pause between messages closes the windows, and each message opens them anew.
    _sysctl(name, "net.ipv4.tcp_slow_start_after_idle=0")
    # TCP cuts packets for a millisecond at its rate, 3 kB here: a thousand for a message, each a turn of the
    # forwarder. So they may be 64 KiB at any round trip; what the receiver sees of the rate is the same.
    _sysctl(name, "net.ipv4.tcp_tso_rtt_log=31")


def _sysctl(namespace: str, setting: str) -> None:
    _ip("netns", "exec", namespace, "sysctl", "-qw", setting)


def cpu_seconds(pid: int) -> float:
    """Seconds of CPU, user and system, of a process that runs."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=30)


def _forward(
    ready: Connection, names: Sequence[str], delay_s: float, pair_bytes_per_s: float, counts: "Array[Any]"
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    devices = [_open_tun(name) for name in names]
    ready.send("ready")
    free: dict[bytes, float] = {}  # pair of addresses → when its cap is free again
    queue: list[tuple[float, int, int, bytes]] = []
    serial = itertools.count()
    poll = select.epoll()
    for device in devices:
        poll.register(device, select.EPOLLIN)
    while True:
        now = time.monotonic()
        while queue and queue[0][0] <= now:
            _, _, device, packet = heapq.heappop(queue)
            try:
                os.write(device, packet)
            except OSError:  # a device without room drops, as a router does
                counts[2] += 1
        wait = queue[0][0] - time.monotonic() if queue else -1
        for device, _ in poll.poll(max(wait, 0.0) if queue else None):
            for packet in _packets(device):
                # Behind virtio's header the addresses of IPv4: source at 12, destination at 16.
                pair = packet[_VNET_HEADER_BYTES + 12 : _VNET_HEADER_BYTES + 20]
                nbytes = len(packet) - _VNET_HEADER_BYTES
                counts[0] += 1
                counts[1] += nbytes
                now = time.monotonic()
                start = max(now, free.get(pair, 0.0))
                if start - now > _QUEUE_S:
                    counts[2] += 1
                    continue
                free[pair] = start + nbytes / pair_bytes_per_s
                heapq.heappush(queue, (free[pair] + delay_s, next(serial), devices[pair[6] - 1], packet))


def _packets(device: int) -> Iterator[bytes]:
    for _ in range(64):
        try:
            yield os.read(device, 65536 + _VNET_HEADER_BYTES)
        except BlockingIOError:
            return


def _open_tun(namespace: str) -> int:
    """A TUN device inside `namespace`; the process is back in its own afterwards."""
    with open("/proc/self/ns/net", "rb") as home:
        enter(namespace)
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), flags))
            fcntl.ioctl(device, _TUNSETOFFLOAD, _CSUM_TSO4_TSO6)
        finally:
            _set_namespace(home.fileno(), "home")
    return device


def _set_namespace(number: int, name: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(number, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"setns to {name}")
