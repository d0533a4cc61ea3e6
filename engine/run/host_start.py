"""What a host does before its ranks run, and a rank's process before it is one."""

import contextlib
import ctypes
import os
import selectors
import signal
import socket
import sys
from dataclasses import replace
from importlib import import_module
from typing import NoReturn

import torch

from engine.control.listening import listen
from engine.job.adapt.placements import compile_search
from engine.job.checkpoint.resuming import with_kept_rate
from engine.job.devices import CUDA
from engine.job.events import event
from engine.job.job import TrainJob
from engine.job.launch import LaunchSpec
from engine.job.model_document import ConfigModel, ModuleModel
from engine.job.predict import predict
from engine.nn.hugging_face import decoder_of
from engine.nn.own_module import check_parts
from engine.run import rank as rank_module
from engine.schedule import Schedule
from engine.schedule.compiled import load_kernels
from engine.train.corpus import Corpus, corpus_of
from engine.train.memory import share
from engine.train.start import Start

_PR_SET_PDEATHSIG = 1


def corpora_of(spec: LaunchSpec) -> dict[str, Corpus]:
    """The text that the local ranks read, by data centre; one corpus for all where they read the same."""
    names = {rank.dc_name for rank in spec.gpus if rank.rank in spec.local}
    if not isinstance(spec.job.data.path, dict):
        return dict.fromkeys(names, corpus_of(spec.job))
    return {name: corpus_of(spec.job, name) for name in names}


def with_rate(spec: LaunchSpec, corpora: dict[str, Corpus]) -> LaunchSpec:
    """The spec with the learning rate that its ranks follow: its own, or the kept one of the checkpoint.

    The host says it, before ranks and tracker begin, so that all follow the same. Raises InputError.
    """
    corpus = next(iter(corpora.values()))
    return replace(spec, job=with_kept_rate(spec.job, corpus.fingerprint))


def listen_for_ranks(spec: LaunchSpec) -> tuple[int, socket.socket | None]:
    """The port of the rendezvous store, and its socket where this machine hosts it. Raises InputError."""
    port = spec.rendezvous_port
    if spec.first_rank not in spec.local:
        return port, None
    ports = (port, port) if port else None
    listener = listen(spec.rendezvous_host, ports, spec.first_rank, field="rendezvous_port")
    return listener.getsockname()[1], listener


def become_rank(start: Start, out: int, life: int) -> NoReturn:
    """Turn a fork of the host into a rank: signals, standard streams (`out`), and its end with the host's."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(out)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    rank_module.leave_with(life)
    rank_module.run(start)


def prepare(job: TrainJob, schedule: Schedule | None) -> None:
    """Import and compile what ranks will need, before any is forked, such that they share it.

    Raises InputError where this machine cannot build the model.
    """
    import_ahead()
    if job.device.kind != CUDA:  # what these import may ask for CUDA: there each rank imports it by itself
        if isinstance(job.model, ConfigModel):
            decoder_of(job.model)  # transformers, seconds
        if job.cell.tp > 1:
            import_module("torch._dynamo")  # as the first DTensor does, a second
    if isinstance(job.model, ModuleModel):
        check_parts(job.model)
    if job.failures.recovery is not None:
        predict(job, schedule=schedule)  # compiles what a smaller layout is judged by
        if job.cell.devices is not None:
            compile_search()
    if job.failures.adapt is not None or job.prefill is not None:
        load_kernels()  # of a rank that plans anew, and of the coordinator
    share()


def import_ahead() -> None:
    """Import what torch imports on first use: 480 modules, which cost a process 0.3 s of a core and 35 MB.

    Build the schemas of events too. It touches no CUDA, which a process must not do before it forks.
    What ranks share with their host becomes their own page by page, as they write to it, most of it in the
    first five minutes. When these were 800 modules and 100 MB, twelve ranks of examples/demo.json and their
    host took 344, 348, 349, 352, 352 and 353 MB that were not shared after 50, 100, … 300 iterations, and
    356 MB after 600; with modules of their own 1,548, 1,550, 1,550 and 1,552 MB after 50 to 200. PSS was
    686 MB in place of 1,730.
    """
    event.build_all()
    torch.empty_like(torch.empty(1, device="meta"), device="cpu")


def watch_children(selector: selectors.BaseSelector) -> None:
    """Wake the selector when a child ends."""
    woken, waker = socket.socketpair()
    for end in (woken, waker):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.detach(), warn_on_full_buffer=False)

    def drain() -> None:
        with contextlib.suppress(BlockingIOError):
            woken.recv(4096)

    selector.register(woken, selectors.EVENT_READ, drain)
