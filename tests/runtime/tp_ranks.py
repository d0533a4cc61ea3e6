"""The ranks of one stage, a process each, beside one process: ``python -m tests.runtime.tp_ranks``.

Prints a JSON object: for each case a list with what each rank found. One program for all cases, because what
torch imports for this takes seconds.
"""

import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import get_gradient_edge
from torch.distributed import TCPStore

from engine.job.job import TrainJob
from engine.job.launch import RankAssignment, single_machine
from engine.nn.device import CpuDevice
from engine.nn.model import Chunk, Stage, loss_of
from engine.nn.one_rank import ONE_RANK, OneRank
from engine.run.host_start import prepare
from engine.train.gradients import Gradients
from tests.runtime.decoders import model_of
from tests.runtime.jobs import job

# Neither 2 nor 4 divides the vocabulary: ranks may have fewer rows of it than others, but of nothing else.
LLAMA = {"family": "llama", "layers": 1, "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 44, "vocab": 259}
GPT = {"family": "gpt", "layers": 2, "hidden": 32, "heads": 4, "vocab": 257}
CASES: dict[str, dict[str, Any]] = {
    "gpt, 2 ranks, fp32": {"tp": 2, "dtype": "fp32", "model": GPT},
    "gpt, 4 ranks, fp64": {"tp": 4, "dtype": "fp64", "model": GPT},
    "llama, 2 ranks, fp64": {"tp": 2, "dtype": "fp64", "model": LLAMA},
    "llama, 2 ranks, fp32, B and W apart": {"tp": 2, "dtype": "fp32", "model": LLAMA, "policy": "zb-h1"},
    "llama, 2 ranks, bf16": {"tp": 2, "dtype": "bf16", "model": LLAMA},
}
CASES |= {
    f"config of {family}, 2 ranks, fp64": {
        "tp": 2,
        "dtype": "fp64",
        "model": model_of(family, num_hidden_layers=2, vocab_size=301, **changes),
        "policy": policy,
    }
    for family, policy, changes in [
        ("qwen2", "gpipe", {"tie_word_embeddings": False}),
        ("gpt_neox", "zb-h1", {}),
    ]
}
MICROBATCHES, ROWS, SEQ, STEPS = 2, 2, 8, 2


def of_case(values: dict[str, Any]) -> TrainJob:
    """The job of a case: one stage, one pipeline."""
    model = {**values["model"], "seq": SEQ}
    here = [{"name": "here", "gpus": 4}]
    return job(
        datacenters=here, links=[], stages=1, dc_of_stage=None, pipelines=1, **{**values, "model": model}
    )


class Model:
    """A stage that is the whole model, as a rank sets it up; `tp` as in engine.nn.one_rank."""

    def __init__(self, of: TrainJob, tp: OneRank = ONE_RANK) -> None:
        self.job, self.tp, self.stage = of, tp, Stage(of, 0)
        tp.cut(self.stage.layers)
        self.parameters = dict(self.stage.named_parameters())
        chunks = list(self.stage.chunks)
        self.sums = Gradients(chunks, group=None, replica=0, replicas=1, tp=tp)
        self.optimizer = torch.optim.AdamW(
            [{"params": kind} for kind in tp.kinds(list(self.parameters.values()))],
            lr=of.optimizer.lr,
            fused=True,
        )

    def whole(self) -> dict[str, Tensor]:
        """The weights as one process has them."""
        return {name: self.tp.whole(p.detach(), p).clone() for name, p in self.parameters.items()}

    def train(self) -> tuple[list[list[float]], dict[str, Tensor]]:
        """Losses and squared norms of some steps, and the gradients of the first one."""
        generator, figures, first = torch.Generator().manual_seed(5), [], {}
        for step in range(STEPS):
            self.sums.clear()
            losses = [self._microbatch(generator) for _ in range(MICROBATCHES)]
            figures.append([sum(losses), self.sums.square_sum()])
            if step == 0:
                first = {name: self.tp.whole(p.grad, p).clone() for name, p in self.parameters.items()}
            self.optimizer.step()
        return figures, first

    def _microbatch(self, generator: torch.Generator) -> float:
        """Forward and backward, as the executor runs them: B in one, or B and W apart."""
        drawn = torch.randint(0, self.job.model.vocabulary, (2, ROWS, SEQ), generator=generator)
        (chunk,) = self.stage.chunks
        assert isinstance(chunk, Chunk)
        chunk.tape = tape = [] if self.job.pipeline_strategy.policy == "zb-h1" else None
        loss = loss_of(chunk(drawn[0]), drawn[1])
        chunk.tape = None
        if tape is None:
            loss.backward()
            return loss.item()
        edges = [edge for edge, _ in tape]
        one = torch.ones((), dtype=loss.dtype)
        upstream = torch.autograd.grad((get_gradient_edge(loss),), edges, (one,), retain_graph=True)
        for (edge, weights), gradient in zip(reversed(tape), reversed(upstream), strict=True):
            torch.autograd.backward((edge,), (gradient,), inputs=weights)
        return loss.item()


def off(ours: Any, theirs: Any) -> float:
    """The largest difference, relative to the largest value."""
    ours, theirs = (torch.as_tensor(values, dtype=torch.float64) for values in (ours, theirs))
    return float((ours - theirs).abs().max() / theirs.abs().max())


def compared(of: TrainJob, tp: OneRank) -> dict[str, Any]:
    """What one rank of a group finds beside one process."""
    alone, shared = Model(of), Model(of, tp)
    given = alone.whole()
    wholes = {name: torch.equal(whole, given[name]) for name, whole in shared.whole().items()}
    parts = {
        name: torch.equal(tp.local(tp.part(given[name], parameter)), tp.local(parameter.detach()))
        for name, parameter in shared.parameters.items()
    }
    bytes_of = [
        sum(model.tp.local(p.detach()).untyped_storage().nbytes() for p in model.parameters.values())
        for model in (shared, alone)
    ]
    (losses, gradients), (expected, sums) = shared.train(), alone.train()
    trained, reference = shared.whole(), alone.whole()
    return {
        "whole": all(wholes.values()),
        "part": all(parts.values()),
        "held": bytes_of[0] / bytes_of[1],
        "told": off(losses, expected),
        "gradients": max(off(gradients[name], sums[name]) for name in sums),
        "weights": max(off(trained[name], reference[name]) for name in reference),
        "digests": shared.stage.digests(tp),
    }


def be_rank(of: TrainJob, me: RankAssignment, listener: socket.socket, into: str) -> None:
    """Be one rank of a case and write to a file what it found."""
    from engine.nn.tensor_parallel import TpGroup  # not where tests read CASES: it takes long

    torch.set_num_threads(1)
    store = TCPStore(
        "127.0.0.1",
        listener.getsockname()[1],
        is_master=me.leads,
        wait_for_workers=False,
        master_listen_fd=listener.fileno() if me.leads else None,
    )
    figures = compared(of, TpGroup(me, of.cell.tp, store, CpuDevice()))
    with open(into, "w", encoding="utf-8") as file:
        json.dump(figures, file)
    store.add("done", 1)
    while me.leads and store.add("done", 0) < of.cell.tp:  # the store is in this process
        time.sleep(0.01)


def ranks_of(of: TrainJob) -> list[dict[str, Any]]:
    """Fork the ranks of a case; returns what they found. Raises RuntimeError where one failed."""
    children, rows = [], []
    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryDirectory() as folder:
        for me in single_machine(of, run="test", log_dir="").ranks:
            into = os.path.join(folder, str(me.rank))
            children.append((forked(partial(be_rank, of, me, listener, into)), into))
        reap([child for child, _ in children])
        for _, into in children:
            with open(into, encoding="utf-8") as file:
                rows.append(json.load(file))
    return rows


def forked(work: Callable[[], None]) -> int:
    """The process id of a fork that does this work; its status is 1 where that raises."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    sys.stderr.flush()
    os._exit(code)


def reap(children: list[int]) -> None:
    """Wait for all children; where one fails end the others, which wait for it, and raise RuntimeError."""
    failed = False
    for _ in range(len(children)):
        child, status = os.wait()
        children.remove(child)
        if status and not failed:
            failed = True
            for other in children:
                os.kill(other, signal.SIGKILL)
    if failed:
        raise RuntimeError("a rank failed")


if __name__ == "__main__":
    for values in CASES.values():
        prepare(of_case(values), None)  # imports, seconds of each rank
    print(json.dumps({name: ranks_of(of_case(values)) for name, values in CASES.items()}))
