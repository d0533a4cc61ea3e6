"""A rank of ours: the executor over the runtime's own mesh, on links that are real to it."""

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import torch
from torch import nn

from benchmarks.wan_testbed.block import DTYPE, LOGITS, Block
from benchmarks.wan_testbed.case import HIDDEN, MICROBATCHES, PIPELINES, STAGES, Case
from benchmarks.wan_testbed.equal_split import EqualSplitWiring
from engine.job.event_writer import EventWriter
from engine.job.launch import LaunchSpec, RankAssignment
from engine.nn.device import EmulatedDevice
from engine.schedule.ir import OpKind, Schedule
from engine.train.executor import Executor, Part, Sizes, work_of
from engine.train.gradients import Gradients
from engine.train.mesh import Mesh
from engine.train.recorder import Recorder
from engine.train.wiring import Wiring
from engine.transport import Peer

_STORE_PORT = 29400


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What all ranks of a run of ours know.

    equal_split : messages go over plain sockets, an equal share on each, and not over the transport.
    """

    case: Case
    ranks: tuple[RankAssignment, ...]
    schedule: Schedule
    connections: int
    equal_split: bool = False


class _Stage(nn.Module):
    def __init__(self, block: Block) -> None:
        super().__init__()
        self.chunks = nn.ModuleList([block])


class _RealMesh(Mesh):
    """The mesh of a job on emulated GPUs over a network that is not: nothing is shaped."""

    def _peer(self, other: RankAssignment) -> Peer:
        return replace(super()._peer(other), shape=None)


class OurRank:
    """One rank; built inside its namespace."""

    def __init__(self, run: Run, me: RankAssignment) -> None:
        job = run.case.job("1f1b", run.connections)
        first = run.ranks[0]
        spec = LaunchSpec(
            run="testbed",
            generation=1,
            job=job,
            ranks=run.ranks,
            local=(me.rank,),
            secret="testbed",
            rendezvous_host=first.host,
            rendezvous_port=_STORE_PORT,
            log_dir=os.devnull,
        )
        listener = (
            socket.create_server((first.host, _STORE_PORT), backlog=64) if me.rank == first.rank else None
        )
        listen_fd = listener.detach() if listener else None
        device = EmulatedDevice(lambda by_s: self._recorder.overrun(by_s))
        self._mesh = _RealMesh(spec, me, run.schedule, device, port=_STORE_PORT, listen_fd=listen_fd)
        self._events = EventWriter(os.open(os.devnull, os.O_WRONLY))
        self._recorder = Recorder(me, self._events, _die)
        shape = (1, run.case.seq, HIDDEN)
        stage = _Stage(Block(LOGITS if me.stage == STAGES - 1 else shape))
        self._gradients = Gradients(
            list(stage.chunks),
            group=self._mesh.replicas,
            replica=me.pipeline,
            replicas=PIPELINES,
            eager=False,
        )
        self._wiring = self._wired(run, me)
        part = Part(
            work=work_of(run.schedule, me.pipeline, me.stage, _durations(run.case)),
            places=self._wiring.places,
            links=self._wiring.links,
            late=run.schedule.recompute_gate == "late",
        )
        sizes = Sizes(shape=shape, dtype=DTYPE, microbatches=MICROBATCHES, pipelines=PIPELINES)
        self._executor = Executor(
            stage,
            part,
            sizes,
            batch=_batch(run.case),
            gradients=self._gradients,  # type: ignore[arg-type]
            recorder=self._recorder,
            device=device,
        )
        self._mesh.barrier("ready")

    def _wired(self, run: Run, me: RankAssignment) -> Wiring:
        if not run.equal_split:
            return Wiring(self._mesh.job, run.schedule, me, self._mesh)
        wiring = EqualSplitWiring(self._mesh.job, run.schedule, me, self._mesh, run.connections)
        wiring.connect(self._mesh.store)
        return wiring

    def iterate(self, iteration: int) -> None:
        """Run one iteration, with its all-reduce."""
        self._recorder.begin(iteration)
        self._executor.run(iteration)
        _, _, end = self._gradients.all_reduce(self._executor.loss, self._recorder.clock.unix)
        self._recorder.finish(end)

    def close(self) -> None:
        """Wait for what is under way, and close."""
        self._recorder.drain()
        self._mesh.barrier("end")
        self._mesh.close()
        self._events.close()


def _durations(case: Case) -> Callable[[OpKind], float]:
    times = case.times
    lasts_ms = {OpKind.F: times.forward, OpKind.R: times.recompute, OpKind.B: times.backward}
    return lambda kind: float(lasts_ms[kind]) / 1e3  # type: ignore[arg-type]


def _batch(case: Case) -> Callable[[int], Any]:
    tokens = torch.zeros((MICROBATCHES, case.seq), dtype=torch.long)
    targets = torch.zeros((MICROBATCHES, 1), dtype=torch.long)
    return lambda _: (tokens, targets)


def _die(error: BaseException) -> NoReturn:
    print(f"a transfer failed: {error}", file=sys.stderr, flush=True)
    os._exit(1)  # the parent sees the pipe close
