"""Whether ranks can exchange what their actions send and receive, without a deadlock.

torch's messages have no tags: what one rank sends another is received in the order of its sends. So the
n-th send must meet the n-th receive, and no circle of ranks may wait for each other. Both hold if the actions
run to their end even when a send waits for its receive, as NCCL's may. Then they also do with buffers.
"""

from collections.abc import Mapping, Sequence

from torch.distributed.pipelining.schedules import _Action, _ComputationType

_SENDS = {
    _ComputationType.SEND_F: (_ComputationType.RECV_F, 1),
    _ComputationType.SEND_B: (_ComputationType.RECV_B, -1),
}
_RECEIVES = {_ComputationType.RECV_F, _ComputationType.RECV_B}
_BACKWARDS = (_ComputationType.FULL_BACKWARD, _ComputationType.BACKWARD_INPUT)


def check_exchange(actions: Mapping[int, Sequence[_Action]], rank_of: Mapping[int, int]) -> None:
    """Follow the actions of all ranks with sends that wait for their receives.

    Parameters
    ----------
    actions : of each rank in order, with sends and receives.
    rank_of : rank of each of torch's stages.

    Raises
    ------
    ValueError
        Ranks wait for each other: the message has the action at which each of them stands.
    """
    follower = _Follower(actions, rank_of)
    while follower.step():
        pass
    waiting = [
        f"rank {rank} at action {at}, {actions[rank][at]}"
        for rank, at in sorted(follower.at.items())
        if at < len(actions[rank])
    ]
    if waiting:
        raise ValueError("the ranks wait for each other: " + "; ".join(waiting))


class _Follower:
    """Where each rank stands, and what is done."""

    def __init__(self, actions: Mapping[int, Sequence[_Action]], rank_of: Mapping[int, int]) -> None:
        self._actions, self._rank_of, self._last = actions, rank_of, max(rank_of)
        self.at = dict.fromkeys(actions, 0)
        self._done: set[_Action] = set()

    def step(self) -> bool:
        """Each rank goes as far as it can; whether any did."""
        before = dict(self.at)
        for rank in self._actions:
            while self._advance(rank):
                pass
        return before != self.at

    def _advance(self, rank: int) -> bool:
        action = self._head(rank)
        if action is None or action.computation_type in _RECEIVES:  # the sender takes a receive along
            return False
        if action.computation_type in _SENDS:
            kind, towards = _SENDS[action.computation_type]
            receive = _Action(action.stage_index + towards, kind, action.microbatch_index)
            peer = self._rank_of[receive.stage_index]
            if not self._is_made(action) or self._head(peer) != receive:
                return False
            self._finish(peer, receive)
        elif not self._has_input(action):
            return False
        self._finish(rank, action)
        return True

    def _head(self, rank: int) -> _Action | None:
        at = self.at[rank]
        return self._actions[rank][at] if at < len(self._actions[rank]) else None

    def _finish(self, rank: int, action: _Action) -> None:
        self._done.add(action)
        self.at[rank] += 1

    def _did(self, stage: int, microbatch: int | None, *kinds: _ComputationType) -> bool:
        return any(_Action(stage, kind, microbatch) in self._done for kind in kinds)

    def _is_made(self, send: _Action) -> bool:
        """Whether what is sent was computed."""
        forward = send.computation_type is _ComputationType.SEND_F
        kinds = (_ComputationType.FORWARD,) if forward else _BACKWARDS
        return self._did(send.stage_index, send.microbatch_index, *kinds)

    def _has_input(self, action: _Action) -> bool:
        """Whether what an op takes in was received, or was computed on the same rank."""
        stage, m, kind = action.stage_index, action.microbatch_index, action.computation_type
        if kind is _ComputationType.FORWARD and stage > 0:
            return self._arrived(stage, stage - 1, m, _ComputationType.RECV_F, _ComputationType.FORWARD)
        if kind in _BACKWARDS and stage < self._last:
            return self._arrived(stage, stage + 1, m, _ComputationType.RECV_B, *_BACKWARDS)
        return True

    def _arrived(
        self, stage: int, source: int, m: int | None, receive: _ComputationType, *made: _ComputationType
    ) -> bool:
        if self._rank_of[source] == self._rank_of[stage]:
            return self._did(source, m, *made)
        return self._did(stage, m, receive)
