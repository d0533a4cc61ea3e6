"""A log that a few machines keep together, so that any minority of them may be lost: Raft without disks.

Raft (Ongaro and Ousterhout 2014): the replicas elect one of them for a term; it alone appends to the log, and
an entry counts once a majority has it. Who lacks an entry that counts cannot win a later election. Three
things are simpler here. A replica that is lost never returns with its memory gone, so nothing is written to
disk. The first of the replicas leads term 1 without an election, by agreement. A leader never removes itself.

Members change one at a time (Ongaro's thesis §4.1): the new members hold from the entry that names them on,
before it counts, so that any majority of the old and of the new ones has a replica in common. A change waits
until the one before counts, and until an entry of the leader's own term does (Ongaro's correction of 2015).
Replicas that are no members, but connected to the leader, learn the log (§4.2.1): they can become members at
once, and vote for nobody but when asked.

Two rules of Ongaro's thesis keep a replica that is cut off from disturbing the others: a candidate first asks
whether it could win (§9.6), and who hears its leader votes for nobody else (§4.2.3). This file knows neither
sockets nor clocks: messages go through `send`, and every call is told the time.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.control.silence import SILENT_S
from engine.inputs import Document, Index

BEAT_S = 0.5  # between two messages of a leader
# Without a message for so long, a follower asks for votes; a leader that most do not answer resigns.
ELECTION_S = SILENT_S
SPREAD_S = 1.5  # at random on top, so that two do not ask at the same time
SOON_S = 0.3  # at random, where the connection to the leader broke, and between two tries
MOST_ENTRIES = 64  # in one message


class Entry(Document):
    """One line of the log; a leader's first one has no record. `members`: those from this entry on."""

    # As json.dumps has it: a median of nothing is NaN.
    model_config = Document.model_config | {"ser_json_inf_nan": "constants"}

    term: Index
    record: dict[str, Any] | None = None
    members: tuple[Index, ...] | None = None


class RequestVote(Document):
    """Vote for the sender in a term; `trial`: would you? It has `length` entries, the last of `last_term`."""

    kind: Literal["request-vote"] = "request-vote"
    term: Index
    trial: bool
    length: Index
    last_term: Index


class Vote(Document):
    """The answer, about the same term, or about a later one that the voter knows."""

    kind: Literal["vote"] = "vote"
    term: Index
    trial: bool
    granted: bool


class Append(Document):
    """Entries after the first `before`, the last of which is of `before_term`; the first `counted` count."""

    model_config = Document.model_config | {"ser_json_inf_nan": "constants"}

    kind: Literal["append"] = "append"
    term: Index
    before: Index
    before_term: Index
    entries: tuple[Entry, ...] = ()
    counted: Index


class Appended(Document):
    """The answer: `agrees` on the first `length` entries, or may at most agree on so many."""

    kind: Literal["appended"] = "appended"
    term: Index
    agrees: bool
    length: Index


Message = RequestVote | Vote | Append | Appended


@dataclass(slots=True)
class _Peer:
    """What a leader knows of another replica: entries sent and agreed on, and when it was heard."""

    sent: int
    agreed: int
    heard: float
    beat: float

    def silent(self, now: float, seconds: float) -> bool:
        """Whether nothing was heard of it for so long."""
        return now >= self.heard + seconds


class Consensus:
    """One replica's part.

    Parameters
    ----------
    me, replicas : its number and those of the first members, the first of which leads term 1. A replica that
        is none of them learns the log of a leader that it is connected to.
    send : takes a message for another replica; it may be lost.
    counts : takes each record that counts, in order, on every replica.

    Attributes
    ----------
    term : the latest that is known here. leader : of this term, where it is known and was heard.
    """

    def __init__(
        self,
        me: int,
        replicas: Sequence[int],
        *,
        send: Callable[[int, Message], None],
        counts: Callable[[dict[str, Any]], None],
        now: float,
        random: random.Random,
    ) -> None:
        self._me = me
        # The members from the entry of that number on.
        self._configurations: list[tuple[int, tuple[int, ...]]] = [(0, tuple(replicas))]
        self._connected: set[int] = set()  # as far as `connected` was said
        self._send, self._counts, self._random = send, counts, random
        self.term = 1
        self.leader: int | None = replicas[0]
        self._voted_for: int | None = replicas[0]
        self._log: list[Entry] = []
        self._counted = 0
        self._votes: set[int] = set()
        self._trial = False  # whether the votes are about a trial
        self._peers: dict[int, _Peer] = {}  # of a leader
        self._begun = 0  # entries before this leader's first one
        self._heard = now
        self._ask_at = self._election(now)
        if me == replicas[0]:
            self._lead(now)

    @property
    def members(self) -> tuple[int, ...]:
        """Those that elect and agree, by the last entry here that names them, whether it counts or not."""
        return self._configurations[-1][1]

    @property
    def changes(self) -> bool:
        """Whether a change of members does not count yet."""
        return self._configurations[-1][0] > self._counted

    @property
    def _others(self) -> tuple[int, ...]:
        return tuple(rank for rank in self.members if rank != self._me)

    @property
    def _most(self) -> int:
        return len(self.members) // 2 + 1

    @property
    def leads(self) -> bool:
        """Whether this replica is elected."""
        return self.leader == self._me

    @property
    def decides(self) -> bool:
        """Whether it is elected and knows of every record that counts."""
        return self.leads and self._counted > self._begun

    @property
    def last(self) -> dict[str, Any] | None:
        """The last record of the log, whether it counts or not."""
        return self._log[-1].record if self._log else None

    def announce(self) -> None:
        """As the leader, tell the others once more what counts."""
        for rank in self._peers:
            self._append(rank, beat=True)

    def propose(self, record: dict[str, Any]) -> None:
        """Append a record. It counts once a majority has it, of which `counts` is told; only a leader may."""
        if not self.leads:
            raise ValueError("only the leader appends to the log")
        self._put(Entry(term=self.term, record=record))

    def change(self, members: Sequence[int]) -> None:
        """Add one member, or remove one that is not the leader. Only a leader that decides may.

        Raises ValueError: the change before does not count yet, or it is not one member.
        """
        if not self.decides or self.changes:
            raise ValueError("only a leader that decides changes the members, and one change at a time")
        if len(set(members) ^ set(self.members)) != 1 or self._me not in members:
            raise ValueError(
                f"members {self.members} cannot become {tuple(members)}: one other joins or leaves"
            )
        self._put(Entry(term=self.term, members=tuple(members)))

    def replaces(self, now: float, *, silent_s: float, count: int) -> tuple[int, ...]:
        """As a leader that decides, the next members: without one that is silent, or with one in its place.

        Empty where there is nothing to change, or nobody to take a place. One learner is as good as another
        here: those that come first in the order of `connected` are first.

        count : of members, where all are there.
        """
        if not self.decides or self.changes:
            return ()
        learned, silent = self.learned(now), self.silent(now, silent_s)
        if not learned:
            return ()
        if len(self.members) < count:
            return (*self.members, learned[0])
        return tuple(rank for rank in self.members if rank != silent[0]) if silent else ()

    def silent(self, now: float, seconds: float) -> tuple[int, ...]:
        """As the leader, the members that have said nothing for so long."""
        return tuple(rank for rank in self._others if self._peers[rank].silent(now, seconds))

    def learned(self, now: float) -> tuple[int, ...]:
        """As the leader, the replicas that are no members, were heard just now and have all that counts."""
        return tuple(
            rank
            for rank, peer in self._peers.items()
            if rank not in self.members and not peer.silent(now, ELECTION_S) and peer.agreed >= self._counted
        )

    def tick(self, now: float) -> None:
        """Do what is due: a sign of life, an election, or the end of a leader whom most do not answer."""
        if not self.leads:
            if now >= self._ask_at and self._me in self.members:
                self._ask(now, trial=True)
            return
        if len(self._others) - len(self.silent(now, ELECTION_S)) + 1 < self._most:
            self._follow(self.term, None, now)
            return
        for rank, peer in self._peers.items():
            if now >= peer.beat + BEAT_S:
                peer.beat = now
                self._append(rank, beat=True)

    def connected(self, rank: int) -> None:
        """A connection to another replica is there, perhaps again: what was sent before may be lost."""
        self._connected.add(rank)
        if self.leads:
            # A learner that is new has not been heard yet.
            peer = self._peers.setdefault(rank, _Peer(0, 0, -ELECTION_S, 0.0))
            peer.sent = peer.agreed
            self._append(rank, beat=True)

    def disconnected(self, rank: int, now: float) -> None:
        """The connection broke: where it was to the leader, another one is to be elected soon."""
        self._connected.discard(rank)
        if rank not in self.members:
            self._peers.pop(rank, None)
        if rank == self.leader:
            self.leader = None
            self._ask_at = now + SOON_S * self._random.random()

    def handle(self, rank: int, message: Message, now: float) -> None:
        """Take in what another replica says."""
        match message:
            case RequestVote():
                self._on_request(rank, message, now)
            case Vote():
                self._on_vote(rank, message, now)
            case Append():
                self._on_append(rank, message, now)
            case Appended():
                self._on_appended(rank, message, now)

    # Elections.

    def _election(self, now: float) -> float:
        return now + ELECTION_S + SPREAD_S * self._random.random()

    def _ask(self, now: float, *, trial: bool) -> None:
        # Others may notice later that the leader is gone: ask again before they would ask by themselves.
        self._ask_at = now + SOON_S * (1 + self._random.random()) * (1 if trial else 4)
        self._trial, self._votes, self.leader = trial, {self._me}, None
        if not trial:
            self.term += 1
            self._voted_for = self._me
        term = self.term + trial
        for rank in self._others:
            self._send(
                rank, RequestVote(term=term, trial=trial, length=len(self._log), last_term=self._last_term())
            )

    def _on_request(self, rank: int, message: RequestVote, now: float) -> None:
        if self.leader is not None and (self.leads or now < self._heard + ELECTION_S):
            return
        if not message.trial and message.term > self.term:
            self._follow(message.term, None, now)
        late = (message.last_term, message.length) < (self._last_term(), len(self._log))
        if message.trial:
            granted = message.term > self.term and not late
        else:
            granted = message.term == self.term and self._voted_for in (None, rank) and not late
            if granted:
                self._voted_for, self._ask_at = rank, self._election(now)
        term = message.term if message.trial and granted else self.term
        self._send(rank, Vote(term=term, trial=message.trial, granted=granted))

    def _on_vote(self, rank: int, message: Vote, now: float) -> None:
        if not message.granted:
            if message.term > self.term:
                self._follow(message.term, None, now)
            return
        if self.leader is not None or message.trial != self._trial or message.term != self.term + self._trial:
            return
        self._votes.add(rank)
        if len(self._votes.intersection(self.members)) < self._most:
            return
        if self._trial:
            self._ask(now, trial=False)
        elif self._voted_for == self._me:
            self._lead(now)

    def _lead(self, now: float) -> None:
        self.leader, self._votes = self._me, set()
        self._begun = len(self._log)
        others = {*self._others, *self._connected}
        self._peers = {rank: _Peer(self._begun, 0, now, now) for rank in sorted(others)}
        self._put(Entry(term=self.term))

    def _follow(self, term: int, leader: int | None, now: float) -> None:
        if term > self.term:
            self.term, self._voted_for = term, None
        self.leader, self._votes = leader, set()
        self._ask_at = self._election(now)

    # The log.

    def _put(self, entry: Entry) -> None:
        """As the leader, append an entry, and send it."""
        self._note(entry)
        if entry.members is not None:
            added = {rank: _Peer(0, 0, -ELECTION_S, 0.0) for rank in self._others}
            self._peers = {**added, **self._peers}
            for rank in self._peers.keys() - {*self._others, *self._connected}:
                del self._peers[rank]
        for rank in self._peers:
            self._append(rank)
        self._count()

    def _note(self, entry: Entry) -> None:
        self._log.append(entry)
        if entry.members is not None:
            self._configurations.append((len(self._log), entry.members))

    def _cut(self, length: int) -> None:
        """Drop what comes after the first `length` entries: another leader has other ones."""
        del self._log[length:]
        self._configurations = [each for each in self._configurations if each[0] <= length]

    def _last_term(self) -> int:
        return self._log[-1].term if self._log else 0

    def _append(self, rank: int, *, beat: bool = False) -> None:
        """Send what a replica lacks, a part at a time; `beat`: though it lacks nothing."""
        peer = self._peers[rank]
        while beat or peer.sent < len(self._log):
            beat = False
            before = peer.sent
            entries = tuple(self._log[before : before + MOST_ENTRIES])
            peer.sent = before + len(entries)
            self._send(
                rank,
                Append(
                    term=self.term,
                    before=before,
                    before_term=self._log[before - 1].term if before else 0,
                    entries=entries,
                    counted=self._counted,
                ),
            )

    def _on_append(self, rank: int, message: Append, now: float) -> None:
        if message.term < self.term:
            self._send(rank, Appended(term=self.term, agrees=False, length=0))
            return
        self._follow(message.term, rank, now)
        self._heard = now
        before = message.before
        if before > len(self._log) or (before and self._log[before - 1].term != message.before_term):
            length = min(len(self._log), before - 1)
            self._send(rank, Appended(term=self.term, agrees=False, length=length))
            return
        for at, entry in enumerate(message.entries, start=before):
            if at < len(self._log) and self._log[at].term != entry.term:
                self._cut(at)
            if at == len(self._log):
                self._note(entry)
        length = before + len(message.entries)
        self._send(rank, Appended(term=self.term, agrees=True, length=length))
        self._count_to(min(message.counted, length))

    def _on_appended(self, rank: int, message: Appended, now: float) -> None:
        if message.term > self.term:
            self._follow(message.term, None, now)
        peer = self._peers.get(rank)
        if not self.leads or message.term < self.term or peer is None:
            return
        peer.heard = now
        if message.agrees:
            peer.agreed = max(peer.agreed, message.length)
            self._count()
        elif message.length < peer.sent:
            peer.sent = max(peer.agreed, message.length)
            self._append(rank, beat=True)

    def _count(self) -> None:
        """What a majority has counts, if it is of this term; what was before it then does, too (§5.4.2)."""
        agreed = sorted((len(self._log), *(self._peers[rank].agreed for rank in self._others)), reverse=True)
        length = agreed[self._most - 1]
        if length > self._counted and self._log[length - 1].term == self.term:
            self._count_to(length)

    def _count_to(self, length: int) -> None:
        while self._counted < length:
            record = self._log[self._counted].record
            self._counted += 1
            if record is not None:
                self._counts(record)
