"""The WAN transport: messages between ranks over several TCP connections per node pair.

One :class:`Endpoint` per rank. No torch in here: buffers are anything that exports bytes (``memoryview``,
``bytearray``, the numpy view of a tensor).

Use
---
::

    endpoint = Endpoint(rank=3, listen_host="10.0.0.4", secret=secret, run="42", generation=1)
    publish(endpoint.address)                               # (host, port), through the rendezvous store
    endpoint.connect([
        Peer(rank=4, address=("10.1.0.4", 40123), link="dc-a → dc-b",
             shape=LinkShape(one_way_delay_s=0.04, cap_bytes_per_s=625e6, window_bytes=2_987_500)),
        Peer(rank=9, address=("10.0.0.5", 40977), link="LAN of dc-a"),          # no shape: a real network
    ])
    receive = endpoint.post_receive(4, (0, 7), into=gradient)   # ahead of the send; into=None allocates
    sent = endpoint.send(4, (1, 7), activation, padded_to=5_000_000)            # returns at once
    receive.wait(timeout_s=60)                              # raises LinkLost where the peer or the link died
    sent.wait()                                             # the buffer may be changed from here on
    sent.start, sent.end, receive.arrived                   # seconds of time.monotonic()
    endpoint.close()                                        # idempotent; leaves no thread and no socket

A tag is a tuple of at most 6 ints (64 bit). It names one message in flight per direction: it may be used
again once the earlier message with it has been received. Messages of at most 16 KiB that are not padded are
urgent: they take a connection of their own and do not wait behind bulk data (scalars, barriers).

Both sides of a pair must connect to each other (the higher rank dials). `connect` blocks until every
connection of every peer stands. Every rank's own `shape` of a pair shapes what that rank sends: both
directions are independent. `connections="auto"` opens as many as the cap needs; over
a real network it changes their number by what they carry.

A connection that breaks is dialled again, and what the peer has not acknowledged goes again; each byte counts
once. A send is done (`wait`) when the peer has every byte. The link is lost when nothing was heard from the
peer for `silence_timeout_s`, or where the peer is known to be gone.

Times. With a `shape`, `Send.start` and `Send.end` are the moments at which the first and the last byte pass
the emulated link, and `Receive.arrived` is `end` + delay (or the moment at which the bytes really were there,
if the machine was too slow for that; `Receive.late_s` says by how much). Without a shape they are the moments
at which the kernel took the bytes, and gave them.

Temporal sharing (Atlas §4.3, §4.4)
-----------------------------------
A cell's n pipelines send one message at a time over all n node pairs of a hop::

    # on the ranks of stage s, pipelines 0 … n−1; near and far by pipeline; all of them connected as peers
    order = ((0, (0,)), (1, (0,)), (0, (1,)), (1, (1,)))
    here = {"pipeline": 1, "near": (3, 9), "far": (4, 10)}
    out = SharedSender(endpoint, link=7, **here, order=order, padded_to=5_000_000)
    out.begin_iteration(k)                  # arms the relay for one pass through `order`
    sent = out.send((0,), activation)                          # this pipeline's own messages, by tag
    sent.wait(); sent.start, sent.end       # over all parts

    # on the ranks of stage s+1
    into = SharedReceiver(endpoint, link=7, pipeline=1, near=(4, 10), far=(3, 9), order=order)
    into.begin_iteration(k)
    receive = into.post_receive((0,), buffer)
    receive.wait(); receive.arrived         # all parts gathered

`order` is the static order of transfers on the shared link: (pipeline, tag) per transfer, the same on all
ranks (from ``Schedule.transfers``). `link` is a number that all ranks of that directed hop and cell share and
no other hop has. Cell peers in one DC talk over LAN pairs of the same endpoint. The relay needs no help from
the compute thread. Both objects fail with LinkLost at `wait` when any of their peers is lost.

Where the WAN is emulated, give the cell's LAN pairs a shape too (no delay, the LAN's rate as cap): the
scatter and the gather are then charged at that rate on the emulated clock. Without one they cost what the
machine takes.

Emulation runs on the clock that all processes of one machine share (CLOCK_MONOTONIC); between machines the
offset of the clocks is measured in the handshake. Bytes are authenticated at the handshake only: on
an untrusted WAN, give the endpoints certificates (`tls=TlsFiles(…)`), or run them in an encrypted tunnel.
"""

from engine.control.errors import (
    AuthenticationError,
    ChecksumError,
    LinkLost,
    MessageSizeError,
    TransportError,
)
from engine.transport.endpoint import Endpoint
from engine.transport.handles import Receive, Send
from engine.transport.shape import Address, LinkShape, Peer
from engine.transport.sharing import SharedReceive, SharedReceiver, SharedSend, SharedSender
from engine.transport.tls import TlsFiles
from engine.transport.traffic import LinkTraffic

__all__ = [
    "Address",
    "AuthenticationError",
    "ChecksumError",
    "Endpoint",
    "LinkLost",
    "LinkShape",
    "LinkTraffic",
    "MessageSizeError",
    "Peer",
    "Receive",
    "Send",
    "SharedReceive",
    "SharedReceiver",
    "SharedSend",
    "SharedSender",
    "TlsFiles",
    "TransportError",
]
