"""Loss and gradient norm of the whole model: scalars handed up the pipeline, each stage adding its own."""

import queue
import struct
import threading
from collections.abc import Callable

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


class Background:
    """Gathers totals in a thread, so that no iteration waits for them where nothing depends on them."""

    def __init__(
        self,
        totals: Totals,
        report: Callable[[int, float, float], None],
        die: Callable[[BaseException], None],
    ) -> None:
        self._totals, self._report, self._die = totals, report, die
        self._queue: queue.SimpleQueue[tuple[int, float, float] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="totals", daemon=True)
        self._thread.start()

    def contribute(self, iteration: int, square_sum: float, loss: float) -> None:
        """This stage's numbers of an iteration."""
        self._queue.put((iteration, square_sum, loss))

    def close(self) -> None:
        """Wait until all contributions are passed on."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None:
                iteration, square_sum, loss = item
                self._report(iteration, *self._totals.gather(iteration, square_sum, loss))
        except BaseException as error:
            self._die(error)
