"""Lost members of the log are replaced by learners, one change at a time (Ongaro's thesis, §4).

The account of what counted, and of one leader a term, is that of test_consensus.World.
"""

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.control.consensus import ELECTION_S, Append, Appended, Consensus, Entry, Message
from tests.control.test_consensus import MOST_TURNS, World

SILENT_S = 6.0


class Replacing(World):
    """Three members and some learners; whoever leads replaces a member that is silent."""

    def __init__(self, seed: int, learners: int = 2) -> None:
        super().__init__(seed, learners=learners)

    def turn(self) -> None:
        super().turn()
        for rank in self.alive():
            leader = self.replicas[rank]
            if members := leader.replaces(self.now, silent_s=SILENT_S, count=3):
                leader.change(members)

    def members(self) -> tuple[int, ...]:
        """As who leads the latest term has them, once they count; none before."""
        leads = [self.replicas[rank] for rank in self.alive() if self.replicas[rank].leads]
        latest = max(leads, key=lambda replica: replica.term, default=None)
        return () if latest is None or latest.changes else latest.members

    def until_replaced(self, *lost: int) -> tuple[int, ...]:
        """The members once there are three again, none of them lost."""
        for _ in range(MOST_TURNS):
            self.turn()
            members = self.members()
            if len(members) == 3 and not set(lost) & set(members):
                return members
        raise AssertionError(f"{lost} are still among the members {self.members()}")

    def mend(self) -> None:
        for a, b in itertools.combinations(self.replicas, 2):
            self.connect(a, b)


@settings(max_examples=25)
@given(seed=st.integers(0, 2**32))
def test_what_counts_stays_while_members_are_replaced(seed: int) -> None:
    """Connections break and return, and two machines die, at any moment: a second one only after the first
    one's place is taken."""
    world = Replacing(seed)
    draw = world.random
    for _ in range(400):
        what = draw.random()
        pair = draw.sample(range(5), 2)
        whole = len(world.members()) == 3 and not world.dead & set(world.members())
        if what < 0.04:
            world.disconnect(*pair)
        elif what < 0.12:
            world.connect(*pair)
        elif what < 0.13 and len(world.dead) < 2 and not world.cut - _of(world.dead) and whole:
            world.kill(pair[0])
        elif what < 0.3:
            world.propose()
        world.turn()
    world.mend()
    world.until_counted()


def _of(dead: set[int]) -> set[frozenset[int]]:
    """What is cut because one of its ends is dead."""
    return {frozenset((rank, other)) for rank in dead for other in range(5) if other != rank}


@pytest.mark.parametrize("first", [0, 1, 2])
def test_one_after_the_other_may_be_lost(first: int) -> None:
    """Of five machines, three are lost in turn: without new members the second loss would be the end."""
    world = Replacing(7)
    world.until_counted()
    lost: list[int] = []
    next_one = first
    while len(lost) < 3:
        before = list(max(world.counted.values(), key=len))
        world.kill(next_one)
        lost.append(next_one)
        if len(lost) < 3:
            next_one = world.until_replaced(*lost)[0]
        world.until_counted()
        for rank in world.alive():
            assert world.counted[rank][: len(before)] == before


def test_without_a_learner_the_members_stay() -> None:
    world = Replacing(7, learners=0)
    world.until_counted()
    world.kill(2)
    while world.now < 5 * ELECTION_S:
        world.turn()
    assert world.members() == (0, 1, 2)


def test_a_member_that_returns_learns_that_it_was_replaced() -> None:
    world = Replacing(7, learners=1)
    world.until_counted()
    for other in (0, 1, 3):
        world.disconnect(2, other)
    world.until_replaced(2)
    world.until_counted_by(0, 1, 3)
    world.mend()
    world.propose()
    world.until_counted()
    assert {replica.members for replica in world.replicas.values()} == {(0, 1, 3)}
    assert world.leaders == {1: 0}, "it disturbs nobody"


def leader() -> tuple[Consensus, list[tuple[int, Message]]]:
    """Replica 0, which leads 1 and 2 and decides, and is connected to 3."""
    sent: list[tuple[int, Message]] = []
    replica = Consensus(
        0,
        (0, 1, 2),
        send=lambda to, message: sent.append((to, message)),
        counts=lambda _: None,
        now=0.0,
        random=random.Random(1),
    )
    replica.handle(1, Appended(term=1, agrees=True, length=1), 0.0)
    replica.connected(3)
    return replica, sent


def test_one_member_changes_at_a_time_and_never_the_leader() -> None:
    replica, _ = leader()
    for members in ((0, 1, 2), (1, 2), (0, 3), (0, 1, 2, 3, 4)):
        with pytest.raises(ValueError, match="one other joins or leaves"):
            replica.change(members)
    replica.change((0, 1))
    with pytest.raises(ValueError, match="one change at a time"):
        replica.change((0, 1, 3))
    replica.handle(1, Appended(term=1, agrees=True, length=2), 0.0)
    assert not replica.changes
    replica.change((0, 1, 3))
    assert replica.members == (0, 1, 3)


def test_the_new_members_agree_from_the_entry_that_names_them_on() -> None:
    """With (0, 1) both have to have the entry; the learner and the removed one do not count."""
    replica, _ = leader()
    replica.change((0, 1))
    for rank in (2, 3):
        replica.handle(rank, Appended(term=1, agrees=True, length=2), 0.0)
    assert replica.changes
    replica.handle(1, Appended(term=1, agrees=True, length=2), 0.0)
    assert not replica.changes


def test_a_leader_that_does_not_decide_changes_nobody() -> None:
    """Ongaro's correction: not before an entry of its own term counts."""
    replica = Consensus(
        0, (0, 1, 2), send=lambda *_: None, counts=lambda _: None, now=0.0, random=random.Random(1)
    )
    with pytest.raises(ValueError, match="only a leader that decides"):
        replica.change((0, 1))


def test_a_follower_forgets_members_whose_entry_another_leader_drops() -> None:
    replica = Consensus(
        1, (0, 1, 2), send=lambda *_: None, counts=lambda _: None, now=0.0, random=random.Random(1)
    )
    first, change = Entry(term=1), Entry(term=1, members=(0, 1))
    replica.handle(0, Append(term=1, before=0, before_term=0, entries=(first, change), counted=1), 0.0)
    assert replica.members == (0, 1)
    other = Entry(term=2)
    replica.handle(2, Append(term=2, before=1, before_term=1, entries=(other,), counted=1), 1.0)
    assert replica.members == (0, 1, 2)
