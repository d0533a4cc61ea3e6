"""Frames between a stage and a decode worker: a fixed head, JSON, raw bytes; nothing is ever unpickled.

Both sides prove first that they know the run's secret, by the handshake of the WAN transport, and inside its
mutual TLS where that is asked for.
"""

import json
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import xxhash

from engine.control.errors import TransportError
from engine.documents import read_json
from engine.transport.tls import TlsContexts

MAGIC = 0x4D4B  # "MK"
_HEAD = struct.Struct("<HIQQ")  # magic, bytes of JSON, raw bytes, checksum of both
MOST_JSON_BYTES = 1024 * 1024

REFUSED = "refused"  # in place of what was due, with the reason

Buffer = bytes | bytearray | memoryview
Frame = dict[str, Any]


class KvTransferError(TransportError):
    """A cache did not come over: refused, damaged, cut off, or not what was asked for."""


@contextmanager
def secured(connected: socket.socket, tls: TlsContexts, *, listens: bool) -> Iterator[socket.socket]:
    """`connected`, which blocks, without delays and inside TLS where that is asked for; closed at the end.

    Raises OSError; what TLS raises is one.
    """
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with tls.wrap(connected, listens=listens) as talking:
        if isinstance(talking, ssl.SSLSocket):
            talking.do_handshake()
        yield talking


def send_frame(connected: socket.socket, header: Frame, body: Buffer = b"") -> None:
    """Send one frame. Raises OSError."""
    text = json.dumps(header, separators=(",", ":")).encode()
    connected.sendall(_HEAD.pack(MAGIC, len(text), len(body), _checksum(text, body)) + text)
    connected.sendall(body)


def receive_frame(
    connected: socket.socket, *, body_bytes: int = 0, into: bytearray | None = None
) -> tuple[Frame, memoryview]:
    """The next frame, which has so many raw bytes; they come to lie in the front of `into` where given.

    Raises
    ------
    KvTransferError
        Not a frame, of another length, or with other bytes than were sent; a refusal instead, with its
        reason; or the other side left.
    OSError
        Among them TimeoutError, where the socket has a limit.
    """
    magic, text_bytes, raw_bytes, checksum = _HEAD.unpack(_receive(connected, _HEAD.size))
    if magic != MAGIC or text_bytes > MOST_JSON_BYTES or raw_bytes not in (0, body_bytes):
        raise KvTransferError("not the expected frame of a KV transfer")
    text = _receive(connected, text_bytes)
    body = _receive(connected, raw_bytes, into)
    if checksum != _checksum(text, body):
        raise KvTransferError("a frame arrived damaged")
    header = _object(text)
    if REFUSED in header:
        raise KvTransferError(str(header[REFUSED]))
    if raw_bytes != body_bytes:
        raise KvTransferError(f"a frame without raw bytes: {body_bytes} were due")
    return header, body


def _object(text: memoryview) -> Frame:
    try:
        header = read_json(bytes(text), most_bytes=MOST_JSON_BYTES)
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise KvTransferError("a frame's header is no JSON object")
    return header


def _checksum(text: Buffer, body: Buffer) -> int:
    digest = xxhash.xxh3_64(text)
    digest.update(body)
    return int(digest.intdigest())


def _receive(connected: socket.socket, count: int, into: bytearray | None = None) -> memoryview:
    data = memoryview(bytearray(count) if into is None else into)[:count]
    view = data
    while view:
        got = connected.recv_into(view)
        if got == 0:
            raise KvTransferError("the other side left before the transfer was complete")
        view = view[got:]
    return data
