"""Sums over replicas in several data centres: a ring over the transport.

torch.distributed's groups stay inside a data centre. Every replica ends with the same bits: each part of a
buffer is summed along one way round the ring, and then handed on.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from engine.control.errors import PeerLost
from engine.control.silence import WAIT_S
from engine.train.exchange import SUM, raw
from engine.transport import Endpoint, TransportError


class _Summing:
    """A sum under way."""

    def __init__(self, future: "Future[None]") -> None:
        self._future = future

    def wait(self) -> None:
        """Return once the buffer holds the sum. Raises PeerLost."""
        self._future.result()


class Ring:
    """This rank's part of a ring of replicas.

    Parameters
    ----------
    ranks : of all replicas, in the order of the ring, the same on each.
    first : number of the first sum, the same on each, past those of a ring that was here before.

    Attributes
    ----------
    after : the rank that this one sends to.
    sent_bytes : of its messages so far, headers not counted.
    """

    def __init__(self, endpoint: Endpoint, ranks: Sequence[int], first: int = 0) -> None:
        self._endpoint, self._ranks = endpoint, tuple(ranks)
        self._me = self._ranks.index(endpoint.rank)
        self.after, self._before = self._ranks[(self._me + 1) % len(self._ranks)], self._ranks[self._me - 1]
        self.sent_bytes = 0
        self._count = first
        self._thread = ThreadPoolExecutor(1, "ring")

    def allreduce(self, tensors: list[Tensor]) -> _Summing:
        """Begin to sum a flat tensor in place; sums are taken one after the other."""
        (tensor,) = tensors
        number, self._count = self._count, self._count + 1
        return _Summing(self._thread.submit(self._sum, number, tensor))

    def _sum(self, number: int, tensor: Tensor) -> None:
        n = len(self._ranks)
        parts = tensor.tensor_split(n)
        for step in range(2 * (n - 1)):
            gives, takes = parts[(self._me - step) % n], parts[(self._me - step - 1) % n]
            adds = step < n - 1
            into = torch.empty_like(takes) if adds else takes
            self._exchange((SUM, number, step), gives, into)
            if adds:
                takes.add_(into)

    def _exchange(self, tag: tuple[int, ...], gives: Tensor, into: Tensor) -> None:
        endpoint = self._endpoint
        try:
            receive = endpoint.post_receive(self._before, tag, into=raw(into)) if into.numel() else None
            sent = endpoint.send(self.after, tag, raw(gives)) if gives.numel() else None
            for handle in (receive, sent):
                if handle is not None:
                    handle.wait(timeout_s=WAIT_S)
            self.sent_bytes += gives.nbytes
        except (TransportError, TimeoutError) as error:
            raise PeerLost(str(error)) from None
