"""Bytes on the wire: a fixed header, then the chunk. Nothing that comes in is ever unpickled."""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import xxhash

from engine.errors import InputError

MAGIC = 0x4D57  # "MW"
MOST_TAG_PARTS = 6
# magic, kind, parts in tag, channel, message, offset, length, payload bytes, message bytes, due, tag,
# checksum
_BODY = struct.Struct("<HBBIQQQQQd6qQ")
_SEAL = struct.Struct("<Q")
_COUNT = struct.Struct("<QQ")  # connection, chunks
HEADER_BYTES = _BODY.size + _SEAL.size
MOST_CONTROL_BYTES = 64 * 1024
MOST_PAYLOAD_BYTES = 1 << 36  # of a message: no layer, no cache and no checkpoint of one comes near it
# Filler of padded messages, shared by all of them.
ZEROS = memoryview(bytes(512 * 1024))
Tag = tuple[int, ...]


class Kind(IntEnum):
    """Kinds of frame."""

    DATA = 1
    BEAT = 2  # a sign of life
    BYE = 3  # this side leaves: nothing follows on this connection
    ACK = 4  # how many chunks came over which connections
    WISH = 5  # how many connections this side would like to have (`message`)
    RETIRE = 6  # this one connection is no longer needed
    UNCHECKED = 7  # DATA whose sender computes no checksum
    PING = 8  # asks for a PONG with its number (`message`): how long there and back?
    PONG = 9


@dataclass(slots=True, kw_only=True)
class Header:
    """The header in front of a chunk.

    message : the sender's number of the message; (channel, tag) : what the receiver knows it by.
    offset, length : the bytes of the message in this chunk; payload_bytes : how many of the message's bytes
    are real (the rest is filler); message_bytes : all of them.
    due : when the chunk is to arrive on the sender's clock; NaN where the link is real.
    """

    kind: Kind
    channel: int = 0
    tag: Tag = ()
    message: int = 0
    offset: int = 0
    length: int = 0
    payload_bytes: int = 0
    message_bytes: int = 0
    due: float = math.nan
    checksum: int = 0

    @property
    def is_chunk(self) -> bool:
        """A piece of a message; every other kind speaks about the link itself."""
        return self.kind in (Kind.DATA, Kind.UNCHECKED)

    @property
    def checked(self) -> bool:
        """`checksum` tells whether its real bytes came as they were sent."""
        return self.real_bytes > 0 and self.kind is not Kind.UNCHECKED

    @property
    def real_bytes(self) -> int:
        """Bytes of this chunk that are not filler."""
        return max(0, min(self.offset + self.length, self.payload_bytes) - self.offset)


class MalformedFrame(ValueError):
    """A header that no sound peer sends."""


def check_tag(tag: Sequence[int]) -> Tag:
    """`tag` as a tuple of at most 6 signed 64-bit ints, or InputError."""
    parts = tuple(int(part) for part in tag)
    if len(parts) > MOST_TAG_PARTS or not all(-(2**63) <= part < 2**63 for part in parts):
        raise InputError("tag", tag, f"must be at most {MOST_TAG_PARTS} ints of 64 bit")
    return parts


def checksum(real: memoryview) -> int:
    """xxh3 (64 bit) of a chunk's real bytes: nobody reads its filler."""
    return int(xxhash.xxh3_64_intdigest(real))


def pack(header: Header) -> bytes:
    """The header's bytes, sealed with a checksum of their own."""
    h = header
    tag = h.tag + (0,) * (MOST_TAG_PARTS - len(h.tag))
    sizes = (h.message, h.offset, h.length, h.payload_bytes, h.message_bytes)
    body = _BODY.pack(MAGIC, h.kind, len(h.tag), h.channel, *sizes, h.due, *tag, h.checksum)
    return body + _SEAL.pack(xxhash.xxh3_64_intdigest(body))


def unpack(data: memoryview) -> Header:
    """The inverse of :func:`pack`. Raises MalformedFrame."""
    body = data[: _BODY.size]
    if _SEAL.unpack(data[_BODY.size :])[0] != xxhash.xxh3_64_intdigest(body):
        raise MalformedFrame("a header's checksum does not match")
    magic, kind, parts, channel, message, offset, length, payload, total, due, *rest = _BODY.unpack(body)
    if magic != MAGIC or parts > MOST_TAG_PARTS or kind not in Kind.__members__.values():
        raise MalformedFrame("not a frame of this protocol")
    if payload > total or offset + length > total:
        raise MalformedFrame(f"a chunk of {length} bytes at {offset} exceeds its message of {total} bytes")
    if payload > MOST_PAYLOAD_BYTES:
        raise MalformedFrame(f"a message of {payload:,} bytes: at most {MOST_PAYLOAD_BYTES:,}")
    if kind not in (Kind.DATA, Kind.UNCHECKED) and length > MOST_CONTROL_BYTES:
        raise MalformedFrame(f"a frame of kind {Kind(kind).name} with {length} bytes")
    return Header(
        kind=Kind(kind),
        channel=channel,
        tag=tuple(rest[:parts]),
        message=message,
        offset=offset,
        length=length,
        payload_bytes=payload,
        message_bytes=total,
        due=due,
        checksum=rest[-1],
    )


def pack_acknowledgement(counts: dict[int, int]) -> list[memoryview]:
    """A frame that tells how many chunks have come over each connection, by the connection's number."""
    body = b"".join(_COUNT.pack(connection, count) for connection, count in counts.items())
    header = Header(
        kind=Kind.ACK,
        length=len(body),
        payload_bytes=len(body),
        message_bytes=len(body),
        checksum=xxhash.xxh3_64_intdigest(body),
    )
    return [memoryview(pack(header)), memoryview(body)]


def unpack_acknowledgement(body: memoryview) -> dict[int, int]:
    """The inverse of the body of :func:`pack_acknowledgement`. Raises MalformedFrame."""
    if len(body) % _COUNT.size:
        raise MalformedFrame(f"an acknowledgement of {len(body)} bytes")
    return dict(_COUNT.iter_unpack(body))
