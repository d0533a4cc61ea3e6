"""One of the machines that keep the tracker of a swap run: any minority of them may be lost.

The first machine's replica begins: workers and the other replicas connect to it, and then it tells all of
them where every replica is. Where it is lost, the others elect one of them (engine.control.consensus), which
makes a tracker of the log; workers find it by asking each replica in turn. A machine that cannot reach most
of the others decides nothing any more, so no two trackers are ever at work.

Three machines keep the tracker. Further ones stand by: they are connected to all of them, learn the log, and
one of them takes the place of a machine that is lost.
"""

import contextlib
import random
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from engine.control.consensus import Append, Appended, Consensus, Message, RequestVote, Vote
from engine.control.identity import identity_of
from engine.control.selector_driver import Listener, SelectorChannel, call
from engine.job.events.base import Emit
from engine.job.events.training import Log
from engine.job.launch import LaunchSpec
from engine.job.swap.tracker import TRACKER_MACHINES
from engine.train.boundary import Flag
from engine.train.swap.journal import Journal, Record, record_from
from engine.train.swap.messages import (
    FROM_REPLICA,
    LISTENERS,
    TO_REPLICA,
    Abandon,
    EndAsked,
    FromReplica,
    Hello,
    Join,
    Roster,
    Seek,
    ToReplica,
    TrackerAddress,
    Welcome,
)
from engine.train.swap.tracker import SILENT_S, TICK_S, Tracker

AGAIN_S = 0.5  # between two attempts to connect to another replica
JOIN_S = 120.0  # for the first replica to be there
GIVE_UP_S = 15.0  # without a leader
MOST_STANDBYS = 4  # each is connected to each replica and each other one
# Without a word from a replica, until another one takes its place: it says something every 0.5 s.
LOST_S = 6.0


def replicas_of(spec: LaunchSpec) -> tuple[int, ...]:
    """The ranks whose machines keep the tracker at first: three, or one where there are fewer machines.

    The first one leads. They are the lowest ranks of their machines among the workers that begin, in as many
    data centres as there are. Two machines could not tell the loss of the other from the loss of the network
    between them.
    """
    return candidates_of(spec)[:TRACKER_MACHINES]


def candidates_of(spec: LaunchSpec) -> tuple[int, ...]:
    """The same, and after them the ranks whose machines stand by to take the place of one that is lost."""
    lowest: dict[str, int] = {}
    for assignment in sorted(spec.ranks, key=lambda assignment: assignment.rank):
        if assignment.rank < spec.job.cell.pipelines:
            lowest.setdefault(assignment.node, assignment.rank)
    if len(spec.local) == len(spec.ranks) or len(lowest) < TRACKER_MACHINES:
        return (spec.first_rank,)
    dc_of = {assignment.rank: assignment.dc for assignment in spec.ranks}
    chosen: list[int] = []
    for _ in range(min(len(lowest), TRACKER_MACHINES + MOST_STANDBYS)):
        used = [dc_of[rank] for rank in chosen]
        left = [rank for rank in lowest.values() if rank not in chosen]
        chosen.append(min(left, key=lambda rank: (used.count(dc_of[rank]), rank)))
    return tuple(chosen)


class Replica:
    """This machine's part.

    Parameters
    ----------
    me : the rank of this machine that is one of `candidates_of` the spec. listening : where others connect.
    emit : takes events. start : starts the process of a rank that is to join now.
    stop_flag : one byte, set to end the run after the step at hand.
    tokens_per_byte : of the text of a step, that counts; None where tokens do not say their text.

    Attributes
    ----------
    journal : what was decided so far. tracker : where this machine's is the tracker now.
    failure : why the run cannot go on, where it cannot.
    """

    def __init__(
        self,
        spec: LaunchSpec,
        me: int,
        listening: socket.socket,
        selector: selectors.BaseSelector,
        *,
        emit: Emit,
        start: Callable[[int], None],
        stop_flag: Flag,
        tokens_per_byte: Callable[[int], float | None],
    ) -> None:
        self._spec, self._me, self._selector = spec, me, selector
        self._emit, self._start, self._stop_flag = emit, start, stop_flag
        self._tokens_per_byte = tokens_per_byte
        self._ranks, self._candidates = replicas_of(spec), candidates_of(spec)
        host, port = listening.getsockname()[:2]
        self._addresses = {me: TrackerAddress(rank=me, address=(host, port))}
        self._peers: dict[int, SelectorChannel[Any]] = {}  # other replicas, by rank
        self._calls: dict[int, SelectorChannel[FromReplica]] = {}  # to them, proven or not
        self._again_at = 0.0
        self._consensus: Consensus | None = None
        self._led_at = time.monotonic() + (JOIN_S - GIVE_UP_S)  # when there was a leader
        self._end_asked = False
        self._told = self._ranks  # members that the log names
        self.journal = Journal(spec.job)
        self.tracker: Tracker | None = None
        self.failure: str | None = None
        identity = identity_of(spec, me, LISTENERS)
        self._listener = Listener(listening, selector, identity, TO_REPLICA, self, silent_s=SILENT_S)
        if me == spec.first_rank:
            self.tracker = self._new_tracker(first=True)
            self._form_if_all()

    @property
    def awaits(self) -> bool:
        """Whether the run goes on, though no worker may be here."""
        if self.journal.over is not None or self.failure is not None:
            return False
        if self.tracker is not None:
            return self.tracker.awaits
        consensus = self._consensus
        ended = (
            consensus is not None
            and consensus.leader is None
            and (consensus.last or {}).get("kind") == "over"
        )
        return consensus is not None and not ended

    def deadline(self) -> float:
        """When `tick` is to be called at the latest (time.monotonic())."""
        due = self.tracker.deadline() if self.tracker is not None else time.monotonic() + TICK_S
        return min(due, time.monotonic() + 0.1) if len(self._ranks) > 1 else due

    def tick(self) -> None:
        """Do what is due."""
        self._listener.tick()
        for connection in list(self._calls.values()):
            connection.tick()
        if len(self._ranks) > 1 and self.journal.over is None:
            self._keep_together(time.monotonic())
        if self.tracker is not None:
            self.tracker.tick()
            self.failure = self.failure or self.tracker.failure

    def close(self) -> None:
        """End: a run that is not over is abandoned, where this machine's is the tracker."""
        if self.tracker is not None and self.journal.over is None:
            self.abandon(self.failure or "the machine of the tracker ended the run")
        elif self._consensus is not None and self._consensus.leads:
            self._consensus.announce()
        self._listener.close()
        for call_ in list(self._calls.values()):
            call_.close()

    def abandon(self, why: str) -> None:
        """Tell workers and replicas that the run has failed."""
        workers = self.tracker.connections() if self.tracker is not None else ()
        for connection in (*workers, *self._peers.values()):
            connection.send(Abandon(why=why))

    # What connections tell (selector_driver.Handler).

    def greeted(self, connection: SelectorChannel[Any]) -> None:
        """A replica that this one called has proved that it knows the secret; who called says what it is."""
        for rank, called in self._calls.items():
            if called is connection:
                self._peers[rank] = connection
                connection.send(Join(tracker=self._addresses[self._me]))
                if self._consensus is not None:
                    self._tell_roster()
                    self._consensus.connected(rank)

    def handle(self, connection: SelectorChannel[Any], message: ToReplica) -> None:
        """Do what a worker or a replica says. Raises ValueError where it makes no sense now."""
        match message:
            case Join():
                self._on_join(connection, message)
            case Roster():
                self._on_roster({tracker.rank: tracker for tracker in message.trackers})
            case RequestVote() | Vote() | Append() | Appended():
                self._on_consensus(connection, message)
            case EndAsked():
                self._end_asked = True
            case Abandon():
                self.failure = self.failure or message.why
            case Seek() if self.tracker is None:
                connection.close()
            case Seek():
                self._tracker_here().sought(connection)
                connection.send(self._welcome())
            case Hello():
                self._tracker_here().handle(connection, message)
                connection.send(self._welcome())
            case _:
                self._tracker_here().handle(connection, message)

    def lost(self, connection: SelectorChannel[Any], why: str) -> None:
        """A worker or a replica is gone."""
        for rank, peer in list(self._peers.items()):
            if peer is connection:
                del self._peers[rank]
                if self._consensus is not None:
                    self._consensus.disconnected(rank, time.monotonic())
        if self.tracker is not None:
            self.tracker.lost(connection)

    def _tracker_here(self) -> Tracker:
        if self.tracker is None:
            raise ValueError("the tracker is not here")
        return self.tracker

    # The other replicas.

    def _on_join(self, connection: SelectorChannel[Any], message: Join) -> None:
        rank = connection.rank
        if rank not in self._candidates or message.tracker.rank != rank:
            raise ValueError("it is not a replica of this run's tracker")
        self._peers[rank] = connection
        self._addresses[rank] = message.tracker
        if self._consensus is not None:
            self._tell_roster()  # before what the consensus says: who stands by may be new
            self._consensus.connected(rank)
        elif self._me == self._spec.first_rank:
            self._form_if_all()

    def _form_if_all(self) -> None:
        """On the first replica's machine: begin to keep the log together once all are there."""
        if not set(self._ranks) <= set(self._addresses):
            return
        self._tell_roster()
        self._form()
        assert self.tracker is not None
        self._welcome_all()
        self.tracker.begin()

    def _tell_roster(self) -> None:
        """Tell the other replicas, and those that stand by, where all are that are known here."""
        roster = Roster(trackers=tuple(self._addresses.values()))
        for connection in self._peers.values():
            connection.send(roster)

    def _on_roster(self, addresses: dict[int, TrackerAddress]) -> None:
        if not set(self._ranks) <= set(addresses) <= set(self._candidates):
            raise ValueError("it names other replicas than the run has")
        self._addresses = {**addresses, **self._addresses}
        if self._consensus is None:
            self._form()

    def _form(self) -> None:
        self._consensus = Consensus(
            self._me,
            self._ranks,
            send=self._send,
            counts=self._counts,
            now=time.monotonic(),
            random=random.Random(),
        )
        for rank in self._peers:
            self._consensus.connected(rank)

    def _on_consensus(self, connection: SelectorChannel[Any], message: Message) -> None:
        if self._consensus is None or self._peers.get(connection.rank) is not connection:
            raise ValueError("it speaks as a replica before it has joined")
        self._consensus.handle(connection.rank, message, time.monotonic())

    def _send(self, rank: int, message: Message) -> None:
        if rank in self._peers:
            self._peers[rank].send(message)

    def _keep_together(self, now: float) -> None:
        """Connect to the others, take part in elections, and begin or end to be the tracker."""
        if now >= self._again_at:
            self._again_at = now + AGAIN_S
            for rank in self._candidates:
                self._call(rank)
        consensus = self._consensus
        if consensus is not None:
            consensus.tick(now)
            if self._stop_flag[0]:
                self._end_asked = True
                if consensus.leader in self._peers:
                    self._peers[consensus.leader].send(EndAsked())
            if consensus.leader is not None:
                self._led_at = now
            if consensus.decides and self.tracker is None:
                self.tracker = self._new_tracker(first=False)
            self._replace_lost(consensus, now)
            if not consensus.leads and self.tracker is not None:
                self._resign()
        if now > self._led_at + GIVE_UP_S and self.failure is None:
            self.failure = self._why_without()

    def _call(self, rank: int) -> None:
        """Connect to a replica with a lower number; the others connect to this one."""
        if self._candidates.index(rank) >= self._candidates.index(self._me):
            return
        if rank in self._calls and self._calls[rank].open:
            return
        address = self._addresses.get(rank)
        if address is not None:
            where = address.address
        elif rank == self._spec.first_rank:
            where = self._spec.rendezvous_host, self._spec.rendezvous_port
        else:
            return
        me = identity_of(self._spec, self._me, LISTENERS)
        with contextlib.suppress(OSError):
            self._calls[rank] = call(where, self._selector, me, rank, FROM_REPLICA, self, silent_s=SILENT_S)

    def _replace_lost(self, consensus: Consensus, now: float) -> None:
        """Let a machine that stands by take the place of one that is lost."""
        members = consensus.replaces(now, silent_s=LOST_S, count=len(self._ranks))
        if members:
            consensus.change(members)
            self._welcome_all()
        elif consensus.decides and not consensus.changes:
            self._tell_members(consensus.members)

    def _tell_members(self, members: tuple[int, ...]) -> None:
        """Say in the log who keeps the tracker from now on, where that has changed."""
        nodes = {assignment.rank: assignment.node for assignment in self._spec.ranks}
        for rank in sorted(set(members) - set(self._told)):
            line = f"{nodes[rank]} keeps what the tracker decides, in place of a lost machine"
            self._emit(Log(rank=self._me, line=line, t=time.time()))
        self._told = members

    def _why_without(self) -> str:
        nodes = {assignment.rank: assignment.node for assignment in self._spec.ranks}
        away = [nodes[rank] for rank in self._members if rank != self._me and rank not in self._peers]
        names = " and ".join(away) or "the others"
        return (
            f"lost {names} of the {len(self._ranks)} machines that keep the state of the run: it survives the"
            " loss of one of them, not of two. Resume it from its last checkpoint"
        )

    # The tracker.

    def _counts(self, values: dict[str, Any]) -> None:
        self._add(record_from(values))

    def _add(self, record: Record) -> None:
        leads = self._consensus is None or self._consensus.leads
        if leads:
            for event in self.journal.events(record):
                self._emit(event)
        self.journal.add(record)
        if self.tracker is not None and leads:
            self.tracker.counts(record)

    def _propose(self, record: Record) -> None:
        if self._consensus is None:
            raise ValueError("the replicas are not all there yet")
        self._consensus.propose(record.model_dump(mode="json", exclude_none=True))

    def _new_tracker(self, *, first: bool) -> Tracker:
        nodes = {assignment.rank: assignment.node for assignment in self._spec.ranks}
        lost = {nodes[rank] for rank in self._members if rank != self._me and rank not in self._peers}
        awaited = None if first else [rank for rank in self.journal.workers if nodes[rank] not in lost]
        return Tracker(
            self._spec,
            self._me,
            emit=self._emit,
            start=self._start,
            stop_flag=_Either(self._stop_flag, lambda: self._end_asked),
            tokens_per_byte=self._tokens_per_byte,
            journal=self.journal,
            propose=self._propose,
            awaited=awaited,
        )

    def _resign(self) -> None:
        """Most of the others do not answer, or have elected another one: workers are to look for that one."""
        assert self.tracker is not None
        for connection in self.tracker.connections():
            connection.close()
        self.tracker = None

    @property
    def _members(self) -> tuple[int, ...]:
        """The replicas as this one knows them."""
        return self._ranks if self._consensus is None else self._consensus.members

    def _welcome(self) -> Welcome:
        known = self._addresses if self._consensus is not None else {}
        return Welcome(trackers=tuple(known[rank] for rank in self._members if rank in known))

    def _welcome_all(self) -> None:
        """Tell the workers where to look for the tracker when this one is lost."""
        if self.tracker is not None:
            for connection in self.tracker.connections():
                connection.send(self._welcome())


class _Either:
    """A byte that the host sets, or something else that asks for the same."""

    def __init__(self, flag: Flag, also: Callable[[], bool]) -> None:
        self._flag, self._also = flag, also

    def __getitem__(self, index: int, /) -> int:
        return self._flag[index] or int(self._also())
