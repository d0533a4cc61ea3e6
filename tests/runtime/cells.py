"""A cell of executors in one process: a thread per GPU, messages handed over in memory.

Everything but the sockets is the real thing: schedule, wiring, executor, model, gradients.
"""

import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.job.job import TrainJob
from engine.job.launch import RankAssignment, single_machine
from engine.job.planned import schedule_of
from engine.nn.device import Moment
from engine.nn.model import DTYPES, PARAMETER_DTYPES, Stage, build_layer, loss_of
from engine.schedule import Schedule
from engine.train.corpus import corpus_of, samples_of
from engine.train.direct import DirectLink
from engine.train.exchange import Incoming, Key, Message, Outgoing, Passage
from engine.train.executor import Executor, Part, Sizes, work_of
from engine.train.gradients import Gradients
from engine.train.wiring import Wiring, ends_of

LONGEST_WAIT_S = 120.0


class Office:
    """Where messages between threads lie until somebody takes them."""

    def __init__(self) -> None:
        self._arrived = threading.Condition()
        self._messages: dict[Any, Any] = {}

    def put(self, name: Any, message: Any) -> None:
        with self._arrived:
            assert name not in self._messages, f"{name} is sent twice"
            self._messages[name] = message
            self._arrived.notify_all()

    def take(self, name: Any) -> Any:
        with self._arrived:
            assert self._arrived.wait_for(lambda: name in self._messages, LONGEST_WAIT_S), (
                f"{name} never came"
            )
            return self._messages.pop(name)

    def empty(self) -> bool:
        return not self._messages


class _Left:
    def wait(self) -> Passage:
        return Passage(start=0.0, end=0.0, arrives=0.0)


@dataclass
class LocalOutgoing:
    office: Office
    sender: int
    receiver: int
    way: int

    def begin(self, iteration: int) -> None: ...

    def send(self, key: Key, tensor: Tensor, ready: Moment) -> _Left:
        self.office.put((self.sender, self.receiver, self.way, key), tensor.clone())
        return _Left()


@dataclass
class LocalIncoming:
    office: Office
    sender: int
    receiver: int
    way: int
    posted: dict[Key, int] = field(default_factory=dict)

    def begin(self, iteration: int) -> None:
        assert not self.posted

    def post(self, key: Key, nbytes: int) -> None:
        self.posted[key] = nbytes

    def wait(self, key: Key) -> Message:
        tensor = self.office.take((self.sender, self.receiver, self.way, key))
        assert tensor.nbytes == self.posted.pop(key)
        return Message(tensor, time.monotonic())


@dataclass
class LocalEndpoint:
    office: Office
    rank: int

    def send(self, rank: int, tag: tuple[int, ...], data: bytes) -> None:
        self.office.put((self.rank, rank, tag), data)

    def post_receive(self, rank: int, tag: tuple[int, ...], size: int) -> "_Posted":
        return _Posted(self.office, (rank, self.rank, tag))


@dataclass
class _Posted:
    office: Office
    name: Any
    arrived: float = 0.0

    def wait(self, timeout_s: float) -> None:
        self.office.take(self.name)
        self.arrived = time.monotonic()


@dataclass
class LocalFabric:
    ranks: dict[tuple[int, int], RankAssignment]
    endpoint: Any
    dc_group: Any = None
    direct: dict[int, DirectLink] = field(default_factory=dict)

    def at(self, pipeline: int, stage: int) -> RankAssignment:
        return self.ranks[pipeline, stage]


class LocalWiring(Wiring):
    def _new_incoming(self, way: int) -> Incoming:
        if way in self._fabric.direct:
            return super()._new_incoming(way)
        office = self._fabric.endpoint.office  # type: ignore[union-attr]
        return LocalIncoming(
            office, self._rank_at(ends_of(way, self._job.cell.stages)[0]), self._me.rank, way
        )

    def _new_outgoing(self, way: int) -> Outgoing:
        if way in self._fabric.direct:
            return super()._new_outgoing(way)
        office = self._fabric.endpoint.office  # type: ignore[union-attr]
        link = LocalOutgoing(
            office, self._me.rank, self._rank_at(ends_of(way, self._job.cell.stages)[1]), way
        )
        return self._in_turn(way, link)


@dataclass
class Notes:
    """Stands in for the recorder: which ops ran, in which order, and how many graphs were held after each."""

    executor: Any = None
    ops: list[str] = field(default_factory=list)
    most_held: int = 0

    def op(self, op: str, microbatch: int, start: float, end: float, *, chunk: int) -> None:
        assert end >= start
        self.ops.append(f"{op}{microbatch}" + (f".{chunk}" if chunk else ""))
        self.most_held = max(self.most_held, len(self.executor._saved))

    def sent(self, hop: Any, microbatch: int, sent: Any) -> None:
        sent.wait()

    def overrun(self, by_s: float) -> None: ...


class LocalEnds:
    """Sums over the two ends of a pipeline, each in a thread of its own."""

    def __init__(self) -> None:
        self._both, self._here = threading.Barrier(2, timeout=LONGEST_WAIT_S), [torch.empty(0)] * 2

    def allreduce(self, tensors: list[Tensor]) -> "LocalEnds":
        self._here[self._both.wait()] = tensors[0].clone()
        self._both.wait()
        tensors[0].copy_(self._here[0] + self._here[1])
        self._both.wait()
        return self

    def wait(self) -> None: ...


@dataclass
class Answer:
    """What one iteration left behind: the loss, and the summed gradients by layer."""

    loss: float
    gradients: dict[int, list[Tensor]]
    notes: dict[tuple[int, int], Notes]


class Cell:
    """All GPUs of a job.

    direct : by (pipeline, stage), the links that do not go through the office.
    """

    def __init__(
        self,
        job: TrainJob,
        schedule: Schedule | None = None,
        direct: Mapping[tuple[int, int], dict[int, DirectLink]] | None = None,
    ) -> None:
        torch.set_num_threads(1)
        self.job, self.schedule = job, schedule or schedule_of(job)
        self.office, self._direct = Office(), direct or {}
        self.corpus = corpus_of(job)
        ranks = {(r.pipeline, r.stage): r for r in single_machine(job, run="x", log_dir="").ranks}
        self.stages = {at: Stage(job, at[1], self.schedule.traversal) for at in ranks}
        self.notes = {at: Notes() for at in ranks}
        self.ends = {pipeline: LocalEnds() for pipeline, _ in ranks}
        self.sums: dict[tuple[int, int], Gradients] = {}
        self.executors = {at: self._executor(ranks, at) for at in ranks}

    def run(self, iteration: int = 0) -> Answer:
        """One iteration on all GPUs at once."""
        with ThreadPoolExecutor(len(self.executors)) as pool:
            for done in [pool.submit(self._iterate, at, iteration) for at in self.executors]:
                done.result(LONGEST_WAIT_S)
        assert self.office.empty()
        loss = sum(executor.loss for executor in self.executors.values())
        return Answer(loss=loss, gradients=self.gradients(), notes=self.notes)

    def _iterate(self, at: tuple[int, int], iteration: int) -> None:
        self.executors[at].run(iteration)
        self.sums[at].all_reduce(self.executors[at].loss, lambda seconds: seconds)

    def gradients(self) -> dict[int, list[Tensor]]:
        """What the iteration left behind, by layer, summed over pipelines."""
        gradients: dict[int, list[Tensor]] = {}
        for stage in self.stages.values():
            for number, layer in zip(stage.numbers, stage.layers, strict=True):
                own = [p.grad.clone() for p in layer.parameters()]  # type: ignore[union-attr]
                known = gradients.get(number)
                gradients[number] = own if known is None else [a + b for a, b in zip(known, own, strict=True)]
        return gradients

    def _executor(self, ranks: dict[tuple[int, int], RankAssignment], at: tuple[int, int]) -> Executor:
        job, (pipeline, stage) = self.job, at
        endpoint = LocalEndpoint(self.office, ranks[at].rank)
        fabric = LocalFabric(ranks, endpoint, direct=self._direct.get(at, {}))
        wiring = LocalWiring(job, self.schedule, ranks[at], fabric)  # type: ignore[arg-type]
        micro = job.cell.microbatches_of_step
        samples = np.concatenate([samples_of(pipeline, m, micro, job.cell.micro_batch) for m in range(micro)])

        def batch(iteration: int) -> tuple[Tensor, Tensor]:
            return tuple(map(torch.from_numpy, self.corpus.batch(iteration, job.cell.global_batch, samples)))  # type: ignore[return-value]

        part = Part(
            work=work_of(self.schedule, pipeline, stage, lambda kind: None),
            positions=wiring.positions,
            links=wiring.links,
            late=self.schedule.recompute_gate == "late",
        )
        tied = self.stages[at].tied
        self.sums[at] = Gradients(
            list(self.stages[at].chunks),
            group=None,
            replica=0,
            replicas=1,
            tied=tied,
            ends=self.ends[pipeline] if len(tied) == 1 else None,
        )
        executor = Executor(
            self.stages[at],
            part,
            Sizes.of(job),
            batch=batch,
            counted=lambda iteration: self.corpus.counted(iteration, job.cell.global_batch),
            gradients=self.sums[at],
            recorder=self.notes[at],  # type: ignore[arg-type]
        )
        self.notes[at].executor = executor
        return executor


def whole(job: TrainJob, iteration: int = 0) -> Answer:
    """The same iteration in one plain pass: no stages, schedule, microbatches or messages."""
    layers = [
        build_layer(job.model, n, job.optimizer.seed).to(PARAMETER_DTYPES[job.device.dtype])
        for n in range(job.model.layers + 2)
    ]
    corpus = corpus_of(job)
    tokens, targets = corpus.batch(iteration, job.cell.global_batch, np.arange(job.cell.global_batch))
    x = torch.from_numpy(tokens)
    for layer in layers:
        x = layer(x).to(DTYPES[job.device.dtype])
    loss = loss_of(x, torch.from_numpy(targets))
    loss.backward()
    gradients = {n: [p.grad for p in layer.parameters()] for n, layer in enumerate(layers)}
    return Answer(loss=float(loss.detach()), gradients=gradients, notes={})  # type: ignore[arg-type]


def far(one: Answer, other: Answer) -> float:
    """The largest difference of a loss or gradient, by the largest entry of its layer's gradients."""
    worst = abs(one.loss - other.loss) / abs(other.loss)
    assert one.gradients.keys() == other.gradients.keys()
    for number, expected in other.gradients.items():
        largest = max(float(g.abs().max()) for g in expected)
        assert largest > 0
        for a, b in zip(one.gradients[number], expected, strict=True):
            worst = max(worst, float((a - b).abs().max()) / largest)
    return worst
