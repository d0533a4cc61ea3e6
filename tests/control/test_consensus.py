"""The log of three machines, with connections that break, messages that are lost, and machines that die.

The account of what counted is kept here, from what each replica was told; Raft's own properties are checked
against it, whatever is drawn.
"""

import itertools
import random
from collections import defaultdict, deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.control.consensus import (
    ELECTION_S,
    Append,
    Appended,
    Consensus,
    Entry,
    Message,
    RequestVote,
    Vote,
)

MOST_TURNS = 4_000


class World:
    """Three replicas, and the messages that are on their way, in order between each two; perhaps learners."""

    def __init__(self, seed: int, count: int = 3, learners: int = 0) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.ways: dict[tuple[int, int], deque[Message]] = defaultdict(deque)
        self.cut: set[frozenset[int]] = set()
        self.dead: set[int] = set()
        self.counted: dict[int, list[int]] = {rank: [] for rank in range(count + learners)}
        self.leaders: dict[int, int] = {}  # by term
        self.replicas: dict[int, Consensus] = {}
        for rank in range(count + learners):
            self.replicas[rank] = self.replica(rank, count)
        for a, b in itertools.permutations(self.replicas, 2) if learners else ():
            self.replicas[a].connected(b)
        self.proposed = 0

    def replica(self, rank: int, count: int) -> Consensus:
        def send(to: int, message: Message) -> None:
            if frozenset((rank, to)) not in self.cut:
                self.ways[rank, to].append(message)

        def counts(record: dict[str, Any]) -> None:
            self.counted[rank].append(record["number"])

        return Consensus(
            rank, range(count), send=send, counts=counts, now=0.0, random=random.Random(self.random.random())
        )

    def alive(self) -> list[int]:
        return [rank for rank in self.replicas if rank not in self.dead]

    def turn(self) -> None:
        """Deliver a message, or let time pass and everybody do what is due."""
        ways = [way for way, messages in self.ways.items() if messages and way[1] not in self.dead]
        # Signs of life to each of the others must not come faster than one at a time is delivered.
        if ways and self.random.random() < 1 - 1.8 / len(self.replicas) ** 2:
            sender, to = self.random.choice(ways)
            self.replicas[to].handle(sender, self.ways[sender, to].popleft(), self.now)
        else:
            self.now += self.random.choice((0.01, 0.1, 0.5))
            for rank in self.alive():
                self.replicas[rank].tick(self.now)
        for rank in self.alive():
            if self.replicas[rank].leads:
                assert self.leaders.setdefault(self.replicas[rank].term, rank) == rank, "one leader a term"
        self.check()

    def check(self) -> None:
        longest = max(self.counted.values(), key=len)
        for counted in self.counted.values():
            assert counted == longest[: len(counted)], "all count the same, in the same order"
        assert len(set(longest)) == len(longest)
        for rank in self.alive():
            if self.replicas[rank].decides and self.replicas[rank].term == max(self.leaders):
                assert self.counted[rank] == longest, "who decides knows all that counts"

    def propose(self) -> None:
        leaders = [rank for rank in self.alive() if self.replicas[rank].leads]
        if leaders:
            self.proposed += 1
            self.replicas[self.random.choice(leaders)].propose({"number": self.proposed})

    def disconnect(self, a: int, b: int) -> None:
        if frozenset((a, b)) in self.cut:
            return
        self.cut.add(frozenset((a, b)))
        for one, other in ((a, b), (b, a)):
            self.ways[one, other].clear()
            if one not in self.dead and self.random.random() < 0.5:  # else it only falls silent
                self.replicas[one].disconnected(other, self.now)

    def connect(self, a: int, b: int) -> None:
        if frozenset((a, b)) in self.cut and not self.dead & {a, b}:
            self.cut.remove(frozenset((a, b)))
            for one, other in ((a, b), (b, a)):
                self.replicas[one].connected(other)

    def kill(self, rank: int) -> None:
        self.dead.add(rank)
        for other in self.replicas:
            if other != rank:
                self.disconnect(rank, other)

    def until_counted(self) -> None:
        """Propose one more until it counts with whoever is there."""
        self.until_counted_by(*self.alive())

    def until_counted_by(self, *ranks: int) -> None:
        """The same with these."""
        for _ in range(MOST_TURNS):
            if self.random.random() < 0.02:
                self.propose()
            self.turn()
            if self.proposed and all(self.proposed in self.counted[rank] for rank in ranks):
                return
        raise AssertionError("nothing counts any more")


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_counts_stays_whoever_is_lost(seed: int) -> None:
    world = World(seed)
    draw = world.random
    for _ in range(300):
        what = draw.random()
        pair = draw.sample(range(3), 2)
        if what < 0.05:
            world.disconnect(*pair)
        elif what < 0.12:
            world.connect(*pair)
        elif what < 0.125 and not world.dead:
            world.kill(pair[0])
        elif what < 0.3:
            world.propose()
        world.turn()
    for a, b in ((0, 1), (0, 2), (1, 2)):
        world.connect(a, b)
    world.until_counted()


@pytest.mark.parametrize("dead", [0, 1, 2])
def test_any_one_of_three_may_be_lost(dead: int) -> None:
    world = World(7)
    world.until_counted()
    before = list(world.counted[(dead + 1) % 3])
    world.kill(dead)
    world.until_counted()
    assert world.counted[(dead + 1) % 3][: len(before)] == before


def test_of_three_one_alone_counts_nothing_and_resigns() -> None:
    world = World(7)
    world.until_counted()
    world.kill(1)
    world.kill(2)
    before = list(world.counted[0])
    world.propose()
    while world.now < 10 * ELECTION_S:
        world.turn()
    assert world.counted[0] == before
    assert not world.replicas[0].leads
    with pytest.raises(ValueError, match="only the leader"):
        world.replicas[0].propose({"number": 0})


def test_one_that_was_cut_off_disturbs_nobody() -> None:
    world = World(7)
    world.until_counted()
    world.disconnect(0, 2)
    world.disconnect(1, 2)
    while world.now < 5 * ELECTION_S:
        world.turn()
    world.connect(0, 2)
    world.connect(1, 2)
    world.until_counted()
    assert world.leaders == {1: 0}


def test_a_replica_votes_once_a_term_and_for_nobody_who_knows_less() -> None:
    answers: list[tuple[int, Message]] = []
    replica = Consensus(
        2,
        (0, 1, 2),
        send=lambda to, message: answers.append((to, message)),
        counts=lambda _: None,
        now=0.0,
        random=random.Random(1),
    )
    entry = Entry(term=1, record={"number": 1})
    replica.handle(0, Append(term=1, before=0, before_term=0, entries=(entry,), counted=0), 0.0)
    later = 2 * ELECTION_S
    for candidate, length in ((0, 0), (0, 1), (1, 1)):
        replica.handle(candidate, RequestVote(term=2, trial=False, length=length, last_term=length), later)
    votes = [(to, message.granted) for to, message in answers if isinstance(message, Vote)]
    assert votes == [(0, False), (0, True), (1, False)]


def test_an_entry_of_an_older_term_counts_only_with_one_of_this_term() -> None:
    """Raft's figure 8: a majority that has an entry of an older term may still lose it."""
    counted: list[int] = []
    replica = Consensus(
        1,
        (0, 1, 2),
        send=lambda *_: None,
        counts=lambda record: counted.append(record["number"]),
        now=0.0,
        random=random.Random(1),
    )
    entry = Entry(term=1, record={"number": 1})
    replica.handle(0, Append(term=1, before=0, before_term=0, entries=(entry,), counted=0), 0.0)
    replica.disconnected(0, 0.0)
    replica.tick(1.0)
    replica.handle(2, Vote(term=2, trial=True, granted=True), 1.0)
    replica.handle(2, Vote(term=2, trial=False, granted=True), 1.0)
    assert replica.leads
    replica.handle(2, Appended(term=2, agrees=True, length=1), 1.0)
    assert counted == []
    replica.handle(2, Appended(term=2, agrees=True, length=2), 1.0)
    assert counted == [1]


def test_one_alone_needs_nobody() -> None:
    world = World(7, count=1)
    world.propose()
    assert world.counted[0] == [1]
    world.now = 100.0
    world.replicas[0].tick(world.now)
    assert world.replicas[0].decides
