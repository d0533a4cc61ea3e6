"""Loss and gradient norm of the whole model: scalars handed up the pipeline, each stage adding its own."""

import struct

from engine.control.silence import WAIT_S
from engine.train.exchange import TOTALS, lost_is_peer_lost
from engine.transport import Endpoint

_PAIR = struct.Struct("<dd")  # sum of squares, loss
_DOWN = 1


class Totals:
    """The chain of one pipeline; `above` and `below` are the ranks of the neighbouring stages."""

    def __init__(self, endpoint: Endpoint | None, *, above: int | None, below: int | None) -> None:
        self._endpoint, self._above, self._below = endpoint, above, below

    def gather(self, iteration: int, square_sum: float, loss: float) -> tuple[float, float]:
        """Add this stage's numbers to those of the stages below and pass them up; returns the sums so far."""
        if self._below is not None:
            below = self._receive(self._below, (TOTALS, iteration))
            square_sum, loss = square_sum + below[0], loss + below[1]
        if self._above is not None:
            self._send(self._above, (TOTALS, iteration), square_sum, loss)
        return square_sum, loss

    def agree(self, iteration: int, square_sum: float, loss: float) -> tuple[float, float]:
        """As `gather`, but every stage returns with the sums of the whole model."""
        sums = self.gather(iteration, square_sum, loss)
        if self._above is not None:
            sums = self._receive(self._above, (TOTALS, iteration, _DOWN))
        if self._below is not None:
            self._send(self._below, (TOTALS, iteration, _DOWN), *sums)
        return sums

    def _send(self, rank: int, tag: tuple[int, ...], square_sum: float, loss: float) -> None:
        assert self._endpoint is not None
        self._endpoint.send(rank, tag, _PAIR.pack(square_sum, loss))

    def _receive(self, rank: int, tag: tuple[int, ...]) -> tuple[float, float]:
        assert self._endpoint is not None
        receive = self._endpoint.post_receive(rank, tag, _PAIR.size)
        lost_is_peer_lost(lambda: receive.wait(timeout_s=WAIT_S))
        square_sum, loss = _PAIR.unpack(bytes(receive.buffer))
        return square_sum, loss
