"""Adds sends and receives to the actions of torch.distributed.pipelining, in the schedule's order.

A send stands behind the op whose output it takes, or, on a link whose order the schedule lists, behind the
sends before it there. Its receive is added to the other rank's list at the same moment. So all lists together
have one order in which every send is followed by its receive: no ranks wait for each other, and messages
without tags meet the receives that they are for.

Where no output is held back, the lists equal those of torch's own `_add_send_recv`.
"""

import re
from collections import defaultdict, deque
from collections.abc import Sequence

from engine.schedule.ir import Schedule
from engine.schedule.traversal import WITHIN_STAGE, Traversal

Link = tuple[int, int]  # as in `Schedule.link_order`
Output = tuple[int, bool, int]  # position of the op, whether it is a forward pass, microbatch

_OP = re.compile(r"(\d+)([FBI])(\d+)")


def add_exchange(rows: Sequence[Sequence[str]], schedule: Schedule, pipeline: int = 0) -> list[list[str]]:
    """Return the ranks' actions with what they send each other (format ``compute_comms``).

    rows : of `torch_actions` for this pipeline; further actions, such as 2REDUCE_GRAD, stay where they are.

    Raises ValueError where ops and transfers wait for each other.
    """
    return _Exchange(rows, schedule, pipeline).run()


class _Exchange:
    def __init__(self, rows: Sequence[Sequence[str]], schedule: Schedule, pipeline: int) -> None:
        self._left = [deque(row) for row in rows]
        self._lists: list[list[str]] = [[] for _ in rows]
        self._path = schedule.traversal
        self._stage_of = self._path.stage_of.tolist()
        self._unsent = _listed(schedule, pipeline)
        self._made: set[Output] = set()
        self._sent: set[Output] = set()

    def run(self) -> list[list[str]]:
        """In each round every rank whose next action can run takes it, as in torch."""
        while any(self._left):
            progress = [self._take(rank) for rank in range(len(self._left))]
            if not any(progress):
                heads = [f"rank {rank} at {row[0]}" for rank, row in enumerate(self._left) if row]
                raise ValueError("ops and transfers wait for each other: " + ", ".join(heads))
        return self._lists

    def _take(self, rank: int) -> bool:
        row = self._left[rank]
        output = _output(row[0]) if row else None
        if not row or (output is not None and not self._has_input(output)):
            return False
        self._lists[rank].append(row.popleft())
        if output is not None:
            self._made.add(output)
            self._send(output)
        return True

    def _has_input(self, output: Output) -> bool:
        """Whether what the op takes in was sent to its rank, or was made there."""
        position, forward, microbatch = output
        source = position + (-1 if forward else 1)
        if not 0 <= source < len(self._stage_of):
            return True
        crosses = self._stage_of[source] != self._stage_of[position]
        return (source, forward, microbatch) in (self._sent if crosses else self._made)

    def _send(self, output: Output) -> None:
        """Send an output, and those that waited for it; or none if its turn has not come."""
        link = _link_of(self._path, output)
        if link is None:
            return
        unsent = self._unsent.get(link, deque([output]))
        while unsent and unsent[0] in self._made:
            self._emit(unsent.popleft())

    def _emit(self, output: Output) -> None:
        position, forward, microbatch = output
        target = position + (1 if forward else -1)
        letter = "F" if forward else "B"
        self._lists[self._stage_of[position]].append(f"{position}SEND_{letter}{microbatch}")
        self._lists[self._stage_of[target]].append(f"{target}RECV_{letter}{microbatch}")
        self._sent.add(output)


def _output(action: str) -> Output | None:
    """What a forward or backward pass makes; None for other actions."""
    match = _OP.fullmatch(action)
    return None if match is None else (int(match[1]), match[2] == "F", int(match[3]))


def _link_of(path: Traversal, output: Output) -> Link | None:
    """The link over which an output leaves; None at the ends of the path and within a stage."""
    position, forward, _ = output
    edge = position if forward else position - 1
    if not 0 <= edge < len(path.hop_of) or path.hop_of[edge] == WITHIN_STAGE:
        return None
    hop = int(path.hop_of[edge])
    return (hop, hop + 1) if forward == (path.direction_of[edge] == 0) else (hop + 1, hop)


def _listed(schedule: Schedule, pipeline: int) -> dict[Link, deque[Output]]:
    """The outputs of one pipeline on each link whose order the schedule lists."""
    path = schedule.traversal
    outputs: dict[Link, deque[Output]] = defaultdict(deque)
    for link in schedule.link_order:
        stage = link[0] % path.stages  # a loop's hop from the first stage back is (P, P − 1)
        for sent in schedule.transfers(*link):
            if sent.pipeline == pipeline:
                position = int(path.position_of[stage, sent.chunk])
                forward = _link_of(path, (position, True, sent.microbatch)) == link
                outputs[link].append((position, forward, sent.microbatch))
    return outputs
