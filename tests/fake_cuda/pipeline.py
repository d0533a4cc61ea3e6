"""A pipeline of ranks in one process, each on a fake GPU and a thread of its own.

All but the sockets is what a rank of a run has: wiring, executor, gradients summed through host memory,
optimizer, and the copy of its state that recovery keeps.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.job.job import TrainJob
from engine.job.launch import RankAssignment, single_machine
from engine.job.planned import schedule_of
from engine.nn.device import CudaDevice
from engine.nn.lane import CudaLane
from engine.nn.model import Stage
from engine.schedule import Schedule
from engine.train.corpus import Corpus, open_corpus, samples_of
from engine.train.direct import DirectLink
from engine.train.exchange import Incoming, Key, Message, Outgoing, Sent
from engine.train.executor import Executor, Part, Sizes, work_of
from engine.train.gradients import Gradients
from engine.train.recovery.memory import Header, Memory, new_memory
from engine.train.staging import StagedSums
from engine.train.wiring import ends_of, hops_at
from tests.fake_cuda.gpu import Gpu
from tests.fake_cuda.nccl import End, Nccl
from tests.runtime.cells import LONGEST_WAIT_S, LocalEndpoint, LocalFabric, LocalIncoming, LocalWiring, Office

REPLICAS = 2


class Doubling:
    """A group of two replicas that have the same."""

    def allreduce(self, tensors: list[Tensor]) -> "Doubling":
        tensors[0].mul_(REPLICAS)
        return self

    def wait(self) -> None:
        """It is summed already."""


@dataclass
class PinnedIncoming(LocalIncoming):
    """Messages arrive in memory from which the device loads fast, as those of gloo do."""

    new_buffer: Callable[[int], Tensor] | None = None

    def wait(self, key: Key) -> Message:
        assert self.new_buffer is not None
        came = super().wait(key)
        buffer = self.new_buffer(came.tensor.nbytes)
        buffer.copy_(came.tensor.view(torch.uint8).flatten())
        return Message(buffer, came.arrived)


class StagedWiring(LocalWiring):
    """The wiring of a rank on a GPU: what it sends is fetched first, but for links that stay on GPUs."""

    def _new_incoming(self, way: int) -> Incoming:
        plain = super()._new_incoming(way)
        if way in self._fabric.direct:
            return plain
        return PinnedIncoming(**vars(plain), new_buffer=self._new_buffer)

    def _new_outgoing(self, way: int) -> Outgoing:
        plain = super()._new_outgoing(way)
        return plain if way in self._fabric.direct else self._staged(plain)


@dataclass
class Notes:
    """Stands in for the recorder, which waits for what was sent only when the run is drained."""

    ops: list[str] = field(default_factory=list)
    under_way: list[Sent] = field(default_factory=list)

    def op(self, op: str, microbatch: int, start: float, end: float, *, chunk: int) -> None:
        assert end >= start
        self.ops.append(f"{op}{microbatch}" + (f".{chunk}" if chunk else ""))

    def sent(self, hop: Any, microbatch: int, sent: Sent) -> None:
        self.under_way.append(sent)

    def drain(self) -> None:
        for sent in self.under_way:
            sent.wait()


class Rank:
    """One stage; to be made and used on one thread, whose current stream is that of its ops."""

    def __init__(
        self, job: TrainJob, schedule: Schedule, fabric: LocalFabric, me: RankAssignment, corpus: Corpus
    ) -> None:
        self._job, self._corpus = job, corpus
        self.device = device = CudaDevice(me.stage)
        self.stage = Stage(job, me.stage, schedule.traversal).to(device.name)
        self.stage.keep_cast()
        micro = job.cell.microbatches_of_step
        self._samples = np.concatenate([samples_of(0, m, micro, job.cell.micro_batch) for m in range(micro)])
        self.gradients = Gradients(
            list(self.stage.chunks),
            group=StagedSums(Doubling(), device),
            replica=0,
            replicas=REPLICAS,
            when_added=self.stage.when_added,
        )
        self.optimizer = torch.optim.AdamW(self.stage.parameters(), lr=job.optimizer.lr, fused=True)
        self.notes = Notes()
        wiring = StagedWiring(job, schedule, me, fabric, device)  # type: ignore[arg-type]
        part = Part(
            work=work_of(schedule, 0, me.stage, lambda kind: None),
            positions=wiring.positions,
            links=wiring.links,
            late=schedule.recompute_gate == "late",
        )
        self.executor = Executor(
            self.stage,
            part,
            Sizes.of(job),
            batch=self._batch,
            gradients=self.gradients,
            recorder=self.notes,
            device=device,  # type: ignore[arg-type]
        )
        self.kept_at = new_memory(me.rank)
        self.memory = Memory(self.kept_at, list(self.stage.parameters()), self.optimizer, device)
        self.loss, self.summed = 0.0, {}  # type: ignore[var-annotated]

    def iterate(self, iteration: int) -> None:
        """What a rank does in one iteration, as engine.run.rank has it."""
        self.executor.run(iteration)
        self.loss, _, _ = self.gradients.all_reduce(self.executor.loss, lambda seconds: seconds)
        square_sum = self.gradients.square_sum()
        self.summed = {
            number: [p.grad.cpu() for p in layer.parameters()]  # type: ignore[union-attr]
            for number, layer in zip(self.stage.numbers, self.stage.layers, strict=True)
        }
        self.optimizer.step()
        self.stage.cast_again()
        self.device.settle()
        self.memory.keep(Header(step=iteration + 1, resumed_from=None, square_sum=square_sum, loss=self.loss))

    def close(self) -> None:
        self.notes.drain()
        os.close(self.kept_at)

    def _batch(self, iteration: int) -> tuple[Tensor, Tensor]:
        tokens, targets = self._corpus.batch(iteration, self._job.cell.global_batch, self._samples)
        return torch.from_numpy(tokens), torch.from_numpy(targets)


@dataclass
class Answer:
    """Loss and gradients by layer of one pipeline, as a single pass gives them, and ops by stage."""

    loss: float
    gradients: dict[int, list[Tensor]]
    ops: list[list[str]]


Ends = dict[int, tuple[End, End]]  # by link: the group at its sender and at its receiver


def direct_ends(job: TrainJob, schedule: Schedule, nccl: Nccl) -> Ends:
    """A communicator for each link inside a data centre, as ranks with GPUs of their own have."""
    hops = {hop for stage in range(job.cell.stages) for hop in hops_at(schedule, stage)}
    return {
        2 * hop + direction: nccl.pair() for hop in hops if job.network(hop) is None for direction in (0, 1)
    }


def _direct_of(ends: Ends, stage: int, stages: int) -> dict[int, DirectLink]:
    """The links of a stage that stay on GPUs; to be made on the stage's thread."""
    return {
        link: DirectLink(group=groups[ends_of(link, stages).index(stage)], lane=CudaLane(cuda(stage)))
        for link, groups in sorted(ends.items())
        if stage in ends_of(link, stages)
    }


def cuda(stage: int) -> torch.device:
    """The GPU of a stage."""
    return torch.device("cuda", stage)


def train(job: TrainJob, gpu: Gpu, iterations: int = 1, ends: Ends | None = None) -> Answer:
    """Iterations of a job of one pipeline, a GPU for each stage; the answer is that of the last.

    ends : of the links that stay on GPUs; None: all messages go through host memory.
    """
    schedule, office = schedule_of(job), Office()
    corpus = open_corpus(job.data.files, seq=job.model.seq, seed=job.optimizer.seed)
    assigned = {(r.pipeline, r.stage): r for r in single_machine(job, run="x", log_dir="").ranks}
    assert gpu.count == len(assigned) == job.cell.stages
    threads = [ThreadPoolExecutor(1, f"rank-{me.rank}") for me in assigned.values()]

    def each(work: Callable[[int], Any]) -> list[Any]:
        futures = [thread.submit(work, number) for number, thread in enumerate(threads)]
        return [one.result(LONGEST_WAIT_S) for one in futures]

    def made(stage: int) -> Rank:
        me = assigned[0, stage]
        fabric = LocalFabric(assigned, LocalEndpoint(office, me.rank))
        fabric.direct = _direct_of(ends or {}, stage, job.cell.stages)
        return Rank(job, schedule, fabric, me, corpus)

    ranks: list[Rank] = each(made)
    for iteration in range(iterations):
        each(lambda stage: ranks[stage].iterate(iteration))  # noqa: B023  (all are done when it returns)
    each(lambda stage: ranks[stage].close())
    for thread in threads:
        thread.shutdown()
    assert office.empty()
    gradients = {
        number: [gradient / REPLICAS for gradient in layer]
        for rank in ranks
        for number, layer in rank.summed.items()
    }
    loss = sum(rank.loss for rank in ranks) / REPLICAS
    return Answer(loss=loss, gradients=gradients, ops=[rank.notes.ops for rank in ranks])
