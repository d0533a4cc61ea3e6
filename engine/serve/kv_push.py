"""A stage's side of a hand-over to a receiver that the request names: it connects, proves itself, and sends.

BubbleTea §5.1: the cache goes to the decode GPU that the inference controller names.

docs/dev/kv-handover.md says what goes over the connection. Both sides prove that they know the key of this
one request, which its client made; nothing of the run's secret is used. Training is not disturbed: the
threads give way to everybody, blocks are copied one at a time, and the cache's lease ends when it ends.
"""

import contextlib
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from engine.control.errors import AuthenticationError, TransportError
from engine.control.handshake import Handshake, Identity, dial
from engine.control.thread_driver import greet
from engine.serve.kv_pool import Freed, KvCache, KvPool, LeaseEnded, blocks_of
from engine.serve.kv_wire import KvTransferError, receive_frame, secured, send_frame
from engine.serve.prefill_wire import PushCache
from engine.serve.yielding import give_way
from engine.transport.tls import TlsContexts, TlsFiles

log = logging.getLogger(__name__)
VERSION = 1  # of the conversation behind the handshake, which carries it as the generation
RUN, RECEIVER = "kv", 0  # what the handshake says in place of a run and of the rank that listens
CONNECT_S = 5.0
PATIENCE_S = 10.0  # for a receiver that says, and takes, nothing
MOST_AT_ONCE = 4  # of one rank
MOST_REASON = 200  # characters that a receiver may say


class KvPusher:
    """Sends caches of one stage's pool to the receivers that requests name, some at the same time.

    tls : certificates, where the run's transfers are encrypted: the receiver shows one of the same authority.
    """

    def __init__(self, pool: KvPool, *, tls: TlsFiles | None = None, patience_s: float = PATIENCE_S) -> None:
        self._pool, self._tls, self._patience_s = pool, TlsContexts.of(tls), patience_s
        self._open: set[socket.socket] = set()
        self._threads = ThreadPoolExecutor(
            MOST_AT_ONCE,
            thread_name_prefix="kv-push",
            initializer=lambda: give_way(threading.get_native_id()) and None,
        )

    def push(self, order: PushCache, report: Callable[[str], None]) -> None:
        """Send the cache, without waiting; `report` gets why it failed, or an empty string.

        Before it reports, the cache is freed in any case.
        """
        self._threads.submit(self._push, order, report)

    def close(self) -> None:
        """End what is under way, and its threads."""
        for connected in list(self._open):
            with contextlib.suppress(OSError):  # it has ended
                connected.shutdown(socket.SHUT_RDWR)
        self._threads.shutdown(cancel_futures=True)

    def _push(self, order: PushCache, report: Callable[[str], None]) -> None:
        try:
            cache = self._pool.claim(order.request, order.blocks)
        except LeaseEnded:
            report("its lease ended")
            return
        try:
            why = self._failure(order, cache)
        finally:
            self._pool.free(order.request, Freed.DECODER_LOST, same=cache)
        report(why)

    def _failure(self, order: PushCache, cache: KvCache) -> str:
        """Send it; why that failed, or an empty string."""
        try:
            self._send(order, cache)
        except LeaseEnded:
            return "its lease ended during the transfer"
        except TransportError as error:
            return _printable(str(error))
        except OSError as error:
            return f"no connection: {error.strerror or type(error).__name__}"
        except Exception as error:  # what it says could quote the request
            log.warning("A KV cache was not sent: %s.", type(error).__name__)
            return "the prefill worker failed"
        return ""

    def _send(self, order: PushCache, cache: KvCache) -> None:
        to = order.to
        with socket.create_connection((to.host, to.port), timeout=CONNECT_S) as connected:
            connected.settimeout(self._patience_s)
            with secured(connected, self._tls, listens=False) as talking:
                self._open.add(talking)
                try:
                    self._converse(talking, order, cache)
                finally:
                    self._open.discard(talking)

    def _converse(self, connected: socket.socket, order: PushCache, cache: KvCache) -> None:
        to, key = order.to, bytes.fromhex(order.to.key)
        me = Identity(rank=order.stage, run=f"{RUN}/{to.request}", generation=VERSION, secret=key)
        handshake = Handshake(dial(me, peer=RECEIVER, index=order.stage, count=order.stages))
        try:
            greet(connected, handshake, self._patience_s)
        except AuthenticationError:
            raise KvTransferError("it does not prove that it knows the key of the request") from None
        header = {
            "request": to.request,
            "stage": order.stage,
            "stages": order.stages,
            "tokens": cache.tokens,
            "next_token": order.token,
            **cache.shape.header(),
        }
        send_frame(connected, header)
        for index, piece in blocks_of(self._pool, cache):
            send_frame(connected, {"block": index}, piece)
        answer, _ = receive_frame(connected)
        if answer.get("taken") != to.request:
            raise KvTransferError("it did not confirm the cache")
        if not self._pool.free(order.request, Freed.HANDED_OVER, same=cache):
            raise LeaseEnded(order.request)


def _printable(reason: str) -> str:
    """What a receiver said, fit for logs and pages."""
    return "".join(one if one.isprintable() else " " for one in reason[:MOST_REASON])
