"""A stage's side of the hand-over: waits for decode workers, gives each the cache that it asks for, once.

Conversation, after the handshake: {fetch, blocks} ← decoder; {cache: shape}, then a frame for each block →
decoder; {taken} ← decoder; the cache is freed; {freed} → decoder. A decoder that breaks off has died: its
cache is freed, too.
"""

import socket
import time

from engine.control.handshake import Handshake, Identity
from engine.control.listening import listen
from engine.control.thread_server import ThreadServer
from engine.prefill.handover import StageCache
from engine.serve.kv_pool import Freed, KvCache, KvPool, LeaseEnded, blocks_of
from engine.serve.kv_wire import REFUSED, KvTransferError, receive_frame, secured, send_frame
from engine.transport.tls import TlsContexts, TlsFiles

PATIENCE_S = 10.0  # for a decoder that says, and takes, nothing
MOST_GUESTS = 64


class KvServer:
    """Serves one stage's pool at `host`; a thread for each decode worker, and one that ends leases in time.

    me : the rank that owns the stage; a decode worker must know the same run, generation and secret.
    ports : of which it takes one; None: any.  tls : certificates, where the transfer is to be encrypted.

    Raises InputError where it cannot listen there, or a certificate does not do.
    """

    def __init__(
        self,
        pool: KvPool,
        me: Identity,
        *,
        host: str,
        ports: tuple[int, int] | None = None,
        patience_s: float = PATIENCE_S,
        tls: TlsFiles | None = None,
    ) -> None:
        self.pool, self.me, self.host = pool, me, host
        self._patience_s, contexts = patience_s, TlsContexts.of(tls)
        self._server = ThreadServer(
            listen(host, ports, me.rank),
            me,
            self._attend,
            name=f"kv-{me.rank}",
            most=MOST_GUESTS,
            look=self._expire,
            secured=lambda connected: secured(connected, contexts, listens=True),
        )
        self.port: int = self._server.address[1]

    def __enter__(self) -> "KvServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def offer(self, request: str, *, lease_s: float) -> StageCache:
        """Hold the request's cache, which is complete, for a decode worker. Raises LeaseEnded, InputError."""
        blocks = self.pool.offer(request, lease_s=lease_s)
        shape = self.pool.shape
        return StageCache(
            rank=self.me.rank,
            host=self.host,
            port=self.port,
            block_ids=blocks,
            first_layer=shape.first_layer,
            layers=shape.layers,
        )

    def close(self) -> None:
        """End all conversations and wait for their threads."""
        self._server.close()

    def _expire(self) -> float | None:
        """End leases in time; returns the seconds until the next one ends."""
        self.pool.expire()
        ends = self.pool.next_end()
        return None if ends is None else ends - time.monotonic()

    def _attend(self, connected: socket.socket, _: Handshake) -> None:
        """Of a decoder that dies, what it held is freed where it is held."""
        connected.settimeout(self._patience_s)
        header, _body = receive_frame(connected)
        request = header.get("fetch")
        blocks = header.get("blocks")
        if not isinstance(request, str) or not isinstance(blocks, list):
            raise KvTransferError("a decode worker sent an unknown request")
        try:
            cache = self.pool.claim(request, tuple(blocks))
        except LeaseEnded:
            send_frame(connected, {REFUSED: "no such cache: its lease ended, or it was taken"})
            return
        try:
            self._send(connected, cache)
            self._let_go(connected, cache)
        except LeaseEnded:
            send_frame(connected, {REFUSED: "the lease ended during the transfer"})
        finally:
            self.pool.free(request, Freed.DECODER_LOST, same=cache)  # gone already where all went well

    def _send(self, connected: socket.socket, cache: KvCache) -> None:
        send_frame(connected, {"cache": cache.request, "tokens": cache.tokens, **cache.shape.header()})
        for index, piece in blocks_of(self.pool, cache):
            send_frame(connected, {"block": cache.blocks[index]}, piece)

    def _let_go(self, connected: socket.socket, cache: KvCache) -> None:
        request = cache.request
        answer, _ = receive_frame(connected)
        if answer.get("taken") != request:
            raise KvTransferError(f"a decode worker did not confirm {request}")
        if not self.pool.free(request, Freed.HANDED_OVER, same=cache):
            raise LeaseEnded(request)
        send_frame(connected, {"freed": request})
