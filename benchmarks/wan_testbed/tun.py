"""Network namespaces, one for each data centre, joined by a process that forwards packets with a delay and a
rate per node pair.

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
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection

_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_CSUM_TSO4_TSO6 = 0x01 | 0x02 | 0x04
_VNET_HEADER_BYTES = 10
_PR_SET_PDEATHSIG = 1
_CLONE_NEWNET = 0x40000000
_DEVICE = "wan"
_SEGMENTS = 44  # of 1,460 bytes: 64 KiB
_DATA_CENTRE = 18  # where an IPv4 header has the third byte of the receiver's address
# A queue before the cap holds so many seconds of it; what is beyond is dropped.
_QUEUE_S = 0.2


@dataclass(frozen=True, kw_only=True)
class Wan:
    """A namespace for each data centre; `forwarder` is the id of the process that forwards."""

    names: tuple[str, ...]
    forwarder: int = 0

    def run(self, dc: int, *command: str) -> list[str]:
        """`command` as it is to be started inside a data centre."""
        return ["ip", "netns", "exec", self.names[dc], *command]

    def limit_window(self, nbytes: int) -> None:
        """Let TCP's receive buffers grow to `nbytes`; the window is some share of that."""
        for name in self.names:
            _sysctl(name, f"net.ipv4.tcp_rmem=4096 {min(nbytes, 131072)} {nbytes}")


def address(dc: int, node: int) -> str:
    """Of a node of a data centre, both counted from 0."""
    return f"10.77.{dc + 1}.{node + 1}"


@contextlib.contextmanager
def wan(*, delay_s: float, pair_bytes_per_s: float, nodes: Sequence[int]) -> Iterator[Wan]:
    """A WAN for the time of the context: so many nodes in each data centre, one-way delay between any two of
    them, most bytes per second of each pair of addresses and direction."""
    made = Wan(names=tuple(f"mwan{os.getpid()}-{dc}" for dc in range(len(nodes))))
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with contextlib.ExitStack() as stack:
        for name in made.names:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "delete", name)
        forwarder = context.Process(
            target=_forward, args=(theirs, made.names, delay_s, pair_bytes_per_s), daemon=True
        )
        forwarder.start()
        stack.callback(forwarder.join, 10)
        stack.callback(forwarder.terminate)
        if not ours.poll(20):
            raise RuntimeError("the forwarder did not start")
        ours.recv()
        for dc, name in enumerate(made.names):
            _set_up(dc, name, nodes)
        yield replace(made, forwarder=forwarder.pid or 0)


def _set_up(dc: int, name: str, nodes: Sequence[int]) -> None:
    for node in range(nodes[dc]):
        _ip("-n", name, "address", "add", f"{address(dc, node)}/24", "dev", _DEVICE)
    _ip("-n", name, "link", "set", "lo", "up")
    _ip("-n", name, "link", "set", _DEVICE, "up", "txqueuelen", "10000")
    for other in range(len(nodes)):
        if other != dc:
            # The kernel's default may be bbr; the window shall decide, as in the paper.
            net = f"{address(other, 0).rpartition('.')[0]}.0/24"
            _ip("-n", name, "route", "add", net, "dev", _DEVICE, "congctl", "cubic")
    _sysctl(name, "net.ipv4.tcp_wmem=4096 262144 33554432")
    # As hosts on long fat links are set up: a window that was open stays so over a pause.
    _sysctl(name, "net.ipv4.tcp_slow_start_after_idle=0")
    # By itself the kernel cuts what a slow connection sends into packets of a millisecond: ten times as many.
    _sysctl(name, f"net.ipv4.tcp_min_tso_segs={_SEGMENTS}")


def _sysctl(name: str, setting: str) -> None:
    _ip("netns", "exec", name, "sysctl", "-qw", setting)


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, timeout=30)


def _forward(ready: Connection, names: Sequence[str], delay_s: float, pair_bytes_per_s: float) -> None:
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
            with contextlib.suppress(OSError):  # a device without room drops, as a router does
                os.write(device, packet)
        wait = queue[0][0] - time.monotonic() if queue else -1
        for device, _ in poll.poll(max(wait, 0.0) if queue else None):
            for packet in _packets(device):
                if packet[_VNET_HEADER_BYTES] >> 4 != 4:
                    continue  # what IPv6 says by itself
                pair = packet[_VNET_HEADER_BYTES + 12 : _VNET_HEADER_BYTES + 20]
                now = time.monotonic()
                start = max(now, free.get(pair, 0.0))
                if start - now > _QUEUE_S:
                    continue
                free[pair] = start + (len(packet) - _VNET_HEADER_BYTES) / pair_bytes_per_s
                there = devices[packet[_VNET_HEADER_BYTES + _DATA_CENTRE] - 1]
                heapq.heappush(queue, (free[pair] + delay_s, next(serial), there, packet))


def _packets(device: int) -> Iterator[bytes]:
    for _ in range(64):
        try:
            yield os.read(device, 65536 + _VNET_HEADER_BYTES)
        except BlockingIOError:
            return


def _open_tun(namespace: str) -> int:
    """A TUN device inside `namespace`; the process is back in its own afterwards."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/self/ns/net", "rb") as home, open(f"/run/netns/{namespace}", "rb") as there:
        if libc.setns(there.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"setns to {namespace}")
        try:
            device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
            fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", _DEVICE.encode(), flags))
            fcntl.ioctl(device, _TUNSETOFFLOAD, _CSUM_TSO4_TSO6)
        finally:
            libc.setns(home.fileno(), _CLONE_NEWNET)
    return device
