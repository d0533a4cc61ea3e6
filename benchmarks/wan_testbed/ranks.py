"""One process per rank, each inside its data centre's namespace; an iteration begins everywhere at once."""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

import torch

from benchmarks.wan_testbed.block import sleep_until
from benchmarks.wan_testbed.tun import Forwarded, Wan, cpu_seconds, enter
from engine.job.launch import RankAssignment
from engine.train import memory

_START_S, _ITERATION_S = 120.0, 400.0
_AHEAD_S = 0.5  # of an iteration's begin, for every rank to hear of it
_PR_SET_PDEATHSIG = 1


class Rank(Protocol):
    """One rank of what is measured."""

    def iterate(self, iteration: int) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One iteration: seconds from its begin until the last rank had done it, and CPU seconds meanwhile."""

    seconds: float
    ranks_cpu_s: float
    forwarded: Forwarded


def measured(
    testbed_moment: Wan,
    ranks: Sequence[RankAssignment],
    build: Callable[[RankAssignment], Rank],
    iterations: int,
) -> Iterator[Iteration]:
    """Start the ranks, and run iterations one after another; all are ended when the iterator is.

    Raises
    ------
    RuntimeError
        A rank failed, or did not end its iteration within minutes.
    """
    context = multiprocessing.get_context("fork")
    memory.share()  # as the runtime's host does
    with contextlib.ExitStack() as stack:
        pipes, pids = [], []
        for me in ranks:
            ours, theirs = context.Pipe()
            process = context.Process(target=_run, args=(theirs, testbed_moment.namespaces[me.dc], build, me))
            process.start()
            stack.callback(process.join)
            stack.callback(process.kill)
            theirs.close()
            pipes.append(ours)
            assert process.pid is not None
            pids.append(process.pid)
        _answers(pipes, _START_S)
        for iteration in range(iterations):
            before, cpu_before = testbed_moment.forwarded(), sum(map(cpu_seconds, pids))
            begin = time.monotonic() + _AHEAD_S
            for pipe in pipes:
                pipe.send((iteration, begin))
            seconds = max(_answers(pipes, _ITERATION_S)) - begin
            yield Iteration(
                seconds=seconds,
                forwarded=testbed_moment.forwarded().since(before),
                ranks_cpu_s=sum(map(cpu_seconds, pids)) - cpu_before,
            )
        for pipe in pipes:
            pipe.send(None)
        _answers(pipes, _START_S)


def _answers(pipes: Sequence[Connection], timeout_s: float) -> list[float]:
    """What every rank answers; the first failure is raised."""
    deadline = time.monotonic() + timeout_s
    answers: dict[Connection, float] = {}
    while left := [pipe for pipe in pipes if pipe not in answers]:
        ready = wait(left, max(0.0, deadline - time.monotonic()))
        if not ready:
            late = [index for index, pipe in enumerate(pipes) if pipe in left]
            raise RuntimeError(f"ranks {late} did not answer within {timeout_s:g} s")
        for pipe in ready:
            answers[pipe] = _answer(pipe, pipes.index(pipe))  # type: ignore[index]
    return [answers[pipe] for pipe in pipes]


def _answer(pipe: Any, rank: int) -> float:
    try:
        answer = pipe.recv()
    except EOFError:
        raise RuntimeError(f"rank {rank} was ended") from None
    if isinstance(answer, str):
        raise RuntimeError(f"rank {rank} failed:\n{answer}")
    return float(answer)


def _run(
    pipe: Connection, namespace: str, build: Callable[[RankAssignment], Rank], me: RankAssignment
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent ends this
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        enter(namespace)
        torch.set_num_threads(1)
        rank = build(me)
        pipe.send(time.monotonic())
        while (order := pipe.recv()) is not None:
            iteration, begin = order
            sleep_until(begin)
            rank.iterate(iteration)
            pipe.send(time.monotonic())
        rank.close()
        pipe.send(time.monotonic())
        pipe.poll(_START_S)  # gloo's peers still read from this process: it ends when the parent says so
    except BaseException:
        with contextlib.suppress(OSError):
            pipe.send(traceback.format_exc())
    os._exit(0)
