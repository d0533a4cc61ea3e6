"""Three machines with a replica of the tracker and a worker each: any of them dies at any moment.

Workers only pretend to compute (test_swap_tracker). The account is kept here, from what workers were told to
commit: a step is taken once, with the same sum by all who take it, and every mini-batch is in that sum once.
"""

import contextlib
import dataclasses
import random
import selectors
import socket
import time
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.control import consensus
from engine.control.channel import Channel
from engine.control.handshake import Handshake, dial
from engine.control.identity import identity_of
from engine.control.messages import line_of
from engine.job.launch import LOCALHOST, LaunchSpec, single_machine
from engine.train.swap import replica as replica_module
from engine.train.swap import tracker as tracker_module
from engine.train.swap.journal import Over
from engine.train.swap.messages import (
    FROM_TRACKER,
    LISTENERS,
    Abort,
    Address,
    Bye,
    Commit,
    Done,
    End,
    FromTracker,
    FromWorker,
    Hello,
    Leave,
    Ready,
    Seek,
    Stats,
    Sum,
    Take,
    TrackerAddress,
    Voted,
    Welcome,
)
from engine.train.swap.replica import Replica, candidates_of, replicas_of
from tests.events import as_dicts
from tests.runtime.swap_jobs import job

STEPS = 6
LONGEST_S = 20.0


class Pretender:
    """A worker that says what a real one would, when it is its turn, and looks for a lost tracker."""

    def __init__(self, spec: LaunchSpec, rank: int, first: TrackerAddress) -> None:
        self.spec, self.rank = spec, rank
        self.trackers: tuple[TrackerAddress, ...] = (first,)
        self.next = 0
        self.gradients: list[int] = []
        self.step = self.epoch = 0
        self.summing: Sum | None = None
        self.over = self.greeted = False
        self.told: list[FromTracker] = []
        self.connect()

    def connect(self) -> None:
        tracker = self.trackers[self.next % len(self.trackers)]
        self.next += 1
        self.tracker = tracker.rank
        self.first_time = len(self.trackers) == 1
        self.socket = socket.create_connection(tracker.address)
        self.socket.setblocking(False)
        me = identity_of(self.spec, self.rank, LISTENERS)
        self.channel = Channel(Handshake(dial(me, peer=tracker.rank)), FROM_TRACKER)
        self.socket.sendall(self.channel.handshake.outgoing())
        self.greeted = False

    def send(self, message: FromWorker) -> None:
        try:
            self.socket.sendall(line_of(message))
        except OSError:
            return  # the next read says so

    def hello(self) -> Hello:
        holds = self.summing is not None
        return Hello(
            step=self.step,
            address=Address(store=1),
            units=tuple(self.gradients),
            epoch=self.epoch,
            holds=holds,
            loss=float(self.step) if self.step else None,
            grad_norm=1.0 if self.step else None,
        )

    def read(self) -> None:
        proven = self.channel.greeting is not None
        try:
            data = self.socket.recv(self.channel.wants)
            if not data:
                raise ConnectionError
            self.told += self.channel.receive(data)
            self.socket.sendall(self.channel.handshake.outgoing())
        except BlockingIOError:
            return
        except OSError:
            self.look_for_another()
            return
        if not proven and self.channel.greeting is not None:
            self.send(self.hello() if self.first_time else Seek())
            self.greeted = self.first_time

    def look_for_another(self) -> None:
        self.socket.close()
        for _ in self.trackers:
            try:
                self.connect()
                return
            except OSError:
                continue

    def act(self, world: "World") -> None:
        self.read()
        if self.told:
            message = self.told.pop(0)
            getattr(self, f"on_{message.kind}")(message, world)

    def on_welcome(self, message: Welcome, _: "World") -> None:
        self.trackers = message.trackers or self.trackers
        if not self.greeted:
            self.greeted = True
            self.send(self.hello())

    def on_take(self, message: Take, _: "World") -> None:
        assert message.step == self.step
        self.gradients += message.units
        self.send(Done(units=message.units))

    def on_sum(self, message: Sum, world: "World") -> None:
        assert message.step == self.step
        ranks = [member.rank for member in message.members]
        if any(world.workers[rank].over for rank in ranks):
            return  # a sum with one that is dead never ends
        sums = {rank: list(world.workers[rank].gradients) for rank in ranks}
        self.summing, self.epoch = message, message.epoch
        assert world.sums.setdefault((message.step, message.epoch), sums) == sums
        self.send(Voted(epoch=message.epoch))

    def on_abort(self, _: Abort, __: "World") -> None:
        self.summing = None

    def on_commit(self, message: Commit, world: "World") -> None:
        assert self.summing is not None
        assert message.step == self.step == self.summing.step
        assert world.committed.setdefault(self.step, self.epoch) == self.epoch, "one sum is the step's"
        self.gradients, self.summing = [], None
        self.step += 1
        self.send(Ready(loss=float(self.step), grad_norm=1.0))

    def on_leave(self, _: Leave, __: "World") -> None:
        self.send(Stats(stats={"rank": self.rank}))

    def on_end(self, _: End, __: "World") -> None:
        self.send(Stats(stats={"rank": self.rank}))

    def on_bye(self, _: Bye, __: "World") -> None:
        self.over = True
        self.socket.close()


class World:
    """Machines, some of which die."""

    def __init__(self, seed: int, *, machines: int = 3, steps: int = STEPS) -> None:
        self.random = random.Random(seed)
        self.sums: dict[tuple[int, int], dict[int, list[int]]] = {}
        self.committed: dict[int, int] = {}
        self.events: list[dict[str, Any]] = []
        self.selector = selectors.DefaultSelector()
        listeners = [socket.create_server((LOCALHOST, 0)) for _ in range(machines)]
        devices = {"pipelines": [[device] for device in range(machines)]}
        of = job(steps=steps, pipelines=machines, microbatches=12 // machines, devices=devices)
        whole = dataclasses.replace(
            single_machine(of, run="test", log_dir=""),
            rendezvous_port=listeners[0].getsockname()[1],
        )
        self.replicas: dict[int, Replica] = {}
        for rank, listener in enumerate(listeners):
            self.replicas[rank] = Replica(
                dataclasses.replace(whole, local=(rank,)),
                rank,
                listener,
                self.selector,
                emit=as_dicts(self.events),
                start=lambda _: None,
                stop_flag=b"\0",
                tokens_per_byte=lambda _: 1.0,
            )
        first = TrackerAddress(rank=0, address=(LOCALHOST, whole.rendezvous_port))
        self.workers = {rank: Pretender(whole, rank, first) for rank in range(machines)}

    def turn(self) -> None:
        what = self.random.random()
        alive = [worker for worker in self.workers.values() if not worker.over]
        if what < 0.4 or not alive:
            for replica in self.replicas.values():
                replica.tick()
            for key, _mask in self.selector.select(0):
                key.data()
        else:
            self.random.choice(alive).act(self)

    def kill(self, machine: int, *, lossy: bool = False) -> None:
        """End a machine, which says nothing as it dies; `lossy`: what it said last does not arrive."""
        replica = self.replicas.pop(machine)
        if lossy:
            peers = [r._peers[machine]._socket for r in self.replicas.values() if machine in r._peers]
            for connected in (*peers, *(w.socket for w in self.workers.values() if w.tracker == machine)):
                with contextlib.suppress(OSError):
                    connected.recv(1 << 20)
        replica.journal.over = replica.journal.over or Over()
        replica._consensus = None
        replica.close()
        self.workers[machine].over = True
        self.workers[machine].socket.close()

    def members(self) -> set[int]:
        """Who keeps the tracker, as who leads knows, once that counts and all workers know where to look."""
        for replica in self.replicas.values():
            consensus = replica._consensus
            if consensus is not None and consensus.decides and not consensus.changes:
                members = set(consensus.members)
                alive = [worker for worker in self.workers.values() if not worker.over]
                known = all({each.rank for each in worker.trackers} == members for worker in alive)
                return members if known else set()
        return set()

    def first_alone_has_stepped(self) -> bool:
        first, *others = (worker.step for worker in self.workers.values())
        return first > max(others)

    def run(self, done: Any) -> None:
        deadline = time.monotonic() + LONGEST_S
        while not done():
            assert time.monotonic() < deadline, self.describe()
            self.turn()

    def describe(self) -> str:
        return "; ".join(
            f"{rank}: {r._consensus and (r._consensus.term, r._consensus.leader)}"
            f" {r.tracker and (r.tracker._phase, r.tracker._step)} {r.failure}"
            for rank, r in self.replicas.items()
        )

    def close(self) -> None:
        for machine in list(self.replicas):
            self.kill(machine)
        self.selector.close()


def quick() -> Any:
    """Elections and returns as soon as a connection breaks."""
    return (
        patch.object(consensus, "SOON_S", 0.01),
        patch.object(replica_module, "AGAIN_S", 0.02),
        patch.object(tracker_module, "RETURN_S", 0.3),
    )


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_machine_dies_at_any_moment(seed: int) -> None:
    soon, again, back = quick()
    with soon, again, back:
        world = World(seed)
        try:
            world.run(lambda: world.committed)
            machine, lossy = world.random.randrange(3), world.random.random() < 0.5
            if world.random.random() < 0.5:  # the worst one: the tracker's own worker alone has taken a step
                world.run(lambda: world.first_alone_has_stepped() or max(world.committed) == STEPS - 1)
                machine, lossy = 0, True
            else:
                for _ in range(world.random.randrange(250)):
                    world.turn()
            if not all(replica.journal.over for replica in world.replicas.values()):
                world.kill(machine, lossy=lossy)
            world.run(lambda: any(replica.journal.over for replica in world.replicas.values()))
            assert sorted(world.committed) == list(range(STEPS))
            for step, epoch in world.committed.items():
                held = world.sums[step, epoch]
                assert sorted(unit for units in held.values() for unit in units) == list(range(12))
            ended = next(r.journal for r in world.replicas.values() if r.journal.over)
            assert ended.losses == [float(step + 1) for step in range(STEPS)]
            assert {e["iteration"] for e in world.events if e["kind"] == "step"} == set(range(STEPS))
            batches = {e["iteration"]: e["units"] for e in world.events if e["kind"] == "batch"}
            for step, epoch in world.committed.items():
                by_rank = {int(rank): list(units) for rank, units in batches[step].items() if units}
                assert by_rank == {rank: units for rank, units in world.sums[step, epoch].items() if units}
        finally:
            world.close()


@pytest.mark.parametrize("seed", range(2))
def test_a_machine_that_stands_by_takes_the_place_of_a_lost_one(seed: int) -> None:
    """Of four machines two are lost, the second one once the first one's place is taken."""
    steps = 250
    soon, again, back = quick()
    with soon, again, back, patch.object(replica_module, "LOST_S", 0.1):
        world = World(seed, machines=4, steps=steps)
        try:
            world.run(lambda: len(world.committed) > 3)
            first = world.random.choice(replicas_of(world.replicas[0]._spec))
            world.kill(first)
            world.run(lambda: world.members() == set(range(4)) - {first})
            assert len(world.committed) < steps, "it was in time"
            world.kill(world.random.choice(sorted(world.members())))
            world.run(lambda: any(replica.journal.over for replica in world.replicas.values()))
            assert all(replica.failure is None for replica in world.replicas.values())
            assert sorted(world.committed) == list(range(steps))
            for step, epoch in world.committed.items():
                held = world.sums[step, epoch]
                assert sorted(unit for units in held.values() for unit in units) == list(range(12))
        finally:
            world.close()


def test_one_of_three_alone_gives_up_and_says_what_it_lost() -> None:
    soon, again, back = quick()
    with soon, again, back, patch.object(replica_module, "GIVE_UP_S", 0.2):
        world = World(7)
        try:
            world.run(lambda: world.committed)
            world.kill(0)
            world.kill(1)
            world.workers[2].over = True
            world.run(lambda: world.replicas[2].failure is not None)
            assert "lost north-0 and north-1 of the 3 machines" in str(world.replicas[2].failure)
            assert not world.replicas[2].awaits
        finally:
            world.close()


@pytest.mark.parametrize(
    ("devices", "expected"),
    [
        ([0, 1, 2], (0, 1, 2)),
        ([0, 1, 3], (0, 2, 1)),
        ([0, 1, 2, 3, 4], (0, 3, 1)),
        ([0, 1], (0,)),
    ],
    ids=["one-dc", "two-dcs", "more-machines", "two-machines"],
)
def test_replicas_are_spread_over_data_centres(devices: list[int], expected: tuple[int, ...]) -> None:
    of = job(pipelines=len(devices), microbatches=4, devices={"pipelines": [[device] for device in devices]})
    spec = single_machine(of, run="test", log_dir="")
    assert replicas_of(spec) == (0,), "one machine has all"
    apart = dataclasses.replace(spec, local=(0,))
    assert replicas_of(apart) == expected
    others = set(range(len(devices))) - set(expected) if len(expected) > 1 else set()
    assert candidates_of(apart)[: len(expected)] == expected
    assert set(candidates_of(apart)[len(expected) :]) == others, "they stand by"
