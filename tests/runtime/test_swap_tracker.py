"""The tracker with workers that only pretend to compute: any order of answers, deaths and joins.

A worker here is a socket and a list of what is in its gradients. Which of them reads or answers next, and who
dies, is drawn; the account of what a committed sum holds is kept here, from the workers' own lists.
"""

import random
import selectors
import socket
import time
from collections.abc import Callable
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine.control.channel import Channel
from engine.control.handshake import Handshake, dial
from engine.control.identity import identity_of
from engine.control.messages import line_of
from engine.job.launch import LOCALHOST, LaunchSpec, single_machine
from engine.train.swap.messages import (
    FROM_TRACKER,
    LISTENERS,
    Abort,
    Address,
    Admit,
    Admitted,
    Bye,
    Commit,
    Done,
    End,
    FromTracker,
    FromWorker,
    Hello,
    Leave,
    Ready,
    Stats,
    Sum,
    Take,
    Voted,
    Welcome,
)
from engine.train.swap.replica import Replica
from tests.events import as_dicts
from tests.runtime.swap_jobs import GPU, job

STEPS = 5
LONGEST_S = 10.0  # of a run that takes a tenth of a second


class Pretender:
    """A worker that says what a real one would, when it is its turn."""

    def __init__(self, spec: LaunchSpec, rank: int, port: int) -> None:
        self.spec, self.rank = spec, rank
        self.socket = socket.create_connection((LOCALHOST, port))
        self.socket.setblocking(False)
        me = identity_of(spec, rank, LISTENERS)
        self.channel = Channel(Handshake(dial(me, peer=spec.first_rank)), FROM_TRACKER)
        self.socket.sendall(self.channel.handshake.outgoing())
        self.told: list[FromTracker] = []
        self.gradients: list[int] = []
        self.steps_in_weights = 0 if rank < spec.job.cell.pipelines else None
        self.summing: Sum | Admit | None = None
        self.over = False

    def read(self) -> None:
        stranger = self.channel.greeting is None
        try:
            self.told += self.channel.receive(self.socket.recv(self.channel.wants))
        except BlockingIOError:
            return
        self.socket.sendall(self.channel.handshake.outgoing())
        if stranger and self.channel.greeting is not None:
            self.send(Hello(step=self.steps_in_weights, address=Address(store=1)))

    def send(self, message: FromWorker) -> None:
        self.socket.sendall(line_of(message))

    def act(self, world: "World") -> None:
        """Handle the next message, if there is one."""
        self.read()
        if self.told and not self.over:
            message = self.told.pop(0)
            getattr(self, f"on_{message.kind}")(message, world)

    def on_take(self, message: Take, _: "World") -> None:
        assert message.step == self.steps_in_weights, "it computes with the weights of that step"
        self.gradients += message.units
        self.send(Done(units=message.units))

    def on_sum(self, message: Sum, world: "World") -> None:
        ranks = [member.rank for member in message.members]
        # Who dies before all have the sum must not count: what counts is looked at when it is committed.
        world.sums[message.epoch] = {r: list(world.workers[r].gradients) for r in ranks}
        self.summing = message
        self.send(Voted(epoch=message.epoch))

    def on_admit(self, message: Admit, world: "World") -> None:
        given = world.workers[message.source].steps_in_weights
        assert given == message.step, "weights come from one that has them"
        self.summing = message
        self.send(Voted(epoch=message.epoch))

    def on_abort(self, _: Abort, __: "World") -> None:
        self.summing = None

    def on_admitted(self, message: Admitted, _: "World") -> None:
        assert self.summing is not None
        self.steps_in_weights = message.step
        self.send(Ready())

    def on_commit(self, message: Commit, world: "World") -> None:
        assert self.summing is not None
        world.committed.setdefault(message.step, world.sums[self.summing.epoch])
        self.gradients, self.summing = [], None
        self.steps_in_weights = message.step + 1
        self.send(Ready(loss=1.0, grad_norm=1.0))

    def on_leave(self, _: Leave, __: "World") -> None:
        assert not self.gradients, "who leaves has brought in what it did"
        self.on_end(End(), __)

    def on_end(self, _: End, __: "World") -> None:
        self.steps_in_weights = None  # it is nobody's source any more
        self.send(Stats(stats={}))

    def on_bye(self, _: Bye, __: "World") -> None:
        self.over = True
        self.socket.close()

    def on_welcome(self, _: Welcome, __: "World") -> None:
        """Of one machine: there is nobody else to look for."""


class World:
    """A tracker and its workers, of which some die."""

    def __init__(self, choose: Callable[[int], int], deaths: int) -> None:
        of = job(
            steps=STEPS,
            swap={
                "gpu": GPU,
                "joins": [{"after_step": 1, "device": 3}, {"after_step": 2, "device": 4}],
                "leaves": [{"after_step": 2, "worker": 1}],
            },
        )
        self.spec = single_machine(of, run="test", log_dir="")
        self.choose, self.deaths = choose, deaths
        self.sums: dict[int, dict[int, list[int]]] = {}
        self.committed: dict[int, dict[int, list[int]]] = {}
        self.events: list[dict[str, Any]] = []
        self.selector = selectors.DefaultSelector()
        listener = socket.create_server((LOCALHOST, 0))
        self.port = listener.getsockname()[1]
        self.tracker = Replica(
            self.spec,
            0,
            listener,
            self.selector,
            emit=as_dicts(self.events),
            start=self.start,
            stop_flag=b"\0",
            tokens_per_byte=lambda _: 1.0,
        )
        self.workers: dict[int, Pretender] = {}
        for rank in range(of.cell.pipelines):
            self.start(rank)

    def start(self, rank: int) -> None:
        self.workers[rank] = Pretender(self.spec, rank, self.port)

    def run(self) -> None:
        deadline = time.monotonic() + LONGEST_S
        while time.monotonic() < deadline:
            if self.tracker.journal.over:
                return
            self.tracker.tick()
            for key, _mask in self.selector.select(0):
                key.data()
            alive = [worker for worker in self.workers.values() if not worker.over]
            if not alive:
                continue
            worker = alive[self.choose(len(alive))]
            # One that stays has the weights; who was told to leave may not have read it yet.
            members = self.tracker.journal.workers
            others = [
                w for w in alive if w is not worker and w.rank in members and w.steps_in_weights is not None
            ]
            if self.deaths and self.tracker.journal.losses and others and self.choose(12) == 0:
                self.deaths -= 1
                worker.over = True
                worker.socket.close()
            else:
                worker.act(self)
        raise AssertionError("the run did not come to its end")

    def close(self) -> None:
        self.tracker.close()
        self.selector.close()
        for worker in self.workers.values():
            worker.socket.close()


@settings(max_examples=40, deadline=None)
@example(seed=164308899, deaths=2)
@given(seed=st.integers(0, 2**32), deaths=st.integers(0, 3))
def test_every_unit_counts_once_whoever_dies(seed: int, deaths: int) -> None:
    world = World(random.Random(seed).randrange, deaths)  # fair: nobody waits for ever
    try:
        world.run()
        assert sorted(world.committed) == list(range(STEPS)), "each step once"
        units = world.spec.job.cell.global_batch // world.spec.job.cell.micro_batch
        for held in world.committed.values():
            assert sorted(unit for of in held.values() for unit in of) == list(range(units))
        batches = [event["units"] for event in world.events if event["kind"] == "batch"]
        by_rank = [{int(rank): units for rank, units in batch.items()} for batch in batches]
        assert by_rank == [world.committed[step] for step in range(STEPS)]
        assert len(world.tracker.journal.losses) == STEPS
        assert [event["iteration"] for event in world.events if event["kind"] == "step"] == list(range(STEPS))
    finally:
        world.close()
