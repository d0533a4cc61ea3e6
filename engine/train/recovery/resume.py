"""One rank's side of recovery: the state that it keeps after every step, and how it starts again."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from engine.control.silence import WAIT_S
from engine.job.recovery.attempt import Attempt
from engine.job.recovery.history import Board, Metrics
from engine.job.recovery.reserve import SharedReserve
from engine.nn.device import Device
from engine.train.exchange import STATE, lost_is_peer_lost
from engine.train.optimizer import Optimizer
from engine.train.recovery.memory import Header, Memory
from engine.transport import Endpoint

UNTOLD = (math.nan, math.nan)  # in place of totals, of a step that was told of before the run


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeState:
    """The state that the host passes to a rank of a run that recovers.

    fd : of the rank's memory. reserve : the GPUs in reserve. metrics : by iteration, of what is known of the
    steps before, and validation the losses on what is held out; for the first rank.
    """

    attempt: Attempt
    fd: int
    board: Board
    reserve: SharedReserve
    metrics: tuple[tuple[int, Metrics], ...] = ()
    validation: tuple[dict[str, Any], ...] = ()

    @property
    def in_memory(self) -> bool:
        """Whether this attempt goes on from memory, a machine's own or another's."""
        return self.attempt.source in ("memory", "peer")

    def peers(self, rank: int) -> list[int]:
        """The ranks that `rank` gives its state to, or takes it from."""
        return [b if a == rank else a for a, b in self.attempt.peers.items() if rank in (a, b)]


class Steps:
    """A rank's memory of its last two steps."""

    def __init__(
        self,
        kept: ResumeState,
        rank: int,
        parameters: Sequence[nn.Parameter],
        optimizer: Optimizer,
        device: Device,
    ) -> None:
        self.kept, self._rank = kept, rank
        self._memory = Memory(kept.fd, parameters, optimizer, device)

    def recalled(self, endpoint: Endpoint | None) -> Header | None:
        """The state with which this attempt begins, in place again; None where it is not in memory."""
        if not self.kept.in_memory:
            return None
        step = self.kept.attempt.step
        if self._rank in self.kept.attempt.peers:
            assert endpoint is not None
            self._take(endpoint, self.kept.attempt.peers[self._rank], step)
        header = self._memory.recall(step)
        takers = [taker for taker, giver in self.kept.attempt.peers.items() if giver == self._rank]
        if takers:
            assert endpoint is not None
            self._give(endpoint, takers, header)
        return header

    def keep(self, step: int, resumed_from: int | None, square_sum: float, loss: float) -> None:
        """Keep the state after `step` steps; called before anything of the next one is sent."""
        self._memory.keep(Header(step=step, resumed_from=resumed_from, square_sum=square_sum, loss=loss))

    def _take(self, endpoint: Endpoint, giver: int, step: int) -> None:
        head = endpoint.post_receive(giver, (STATE, step, 0), Header.LAYOUT.size)
        body = endpoint.post_receive(giver, (STATE, step, 1), self._memory.receive(step))
        for receive in (head, body):
            lost_is_peer_lost(lambda receive=receive: receive.wait(timeout_s=WAIT_S))
        header = Header.unpack(bytes(head.buffer))
        if header is None or header.step != step:
            raise LookupError(f"rank {giver} sent another state than that after {step} steps")
        self._memory.publish(header)

    def _give(self, endpoint: Endpoint, takers: Sequence[int], header: Header) -> None:
        sends = []
        for taker in takers:
            sends.append(endpoint.send(taker, (STATE, header.step, 0), header.pack()))
            sends.append(endpoint.send(taker, (STATE, header.step, 1), self._memory.body(header.step)))
        for send in sends:
            lost_is_peer_lost(lambda send=send: send.wait(timeout_s=WAIT_S))
