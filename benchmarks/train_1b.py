"""Trains a Llama of a billion parameters in four stages: ``python -m benchmarks.train_1b [--layers 16]``.

Blocks as wide as those of Llama 3.2 1B (hidden 2048, MLP 8192, 32 heads, 8 of keys and values) and 8,192 rows
of vocabulary: 16 layers have 1.007 billion parameters, 4 layers 0.277 billion. Three iterations in fp32 on
the CPU of one machine, as `meridian train` runs them, one process for each stage. A row has what the dry run
counts for a stage and what its process took at most: its anonymous memory by Linux's own peak, without what
it had from the process that it was forked from. That is more than its tensors by the heap of Python and of
the libraries, about 0.15 GB. The exit status is 1 if a stage is more than 10 % off.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

from engine.commands.tables import render
from engine.inputs import parse
from engine.job.all_reduce import stage_parameters
from engine.job.events.event import Event
from engine.job.events.training import Rank, Result
from engine.job.job import TrainJob
from engine.job.launch import single_machine
from engine.job.memory import stage_memory
from engine.run.launcher import RankGroup

STAGES = 4
MOST_OFF = 0.1
SAMPLE_S = 0.1
LONGEST_RUN_S = 3600
ROOM_BYTES = 1_500_000_000  # for the processes themselves, and for others
HEAD = ["stage", "parameters", "planned\nGB", "measured\nGB", "off\n%"]


def document(layers: int) -> dict[str, Any]:
    """The job: short sequences, one a microbatch, as weights and their states are what is large here."""
    config = {
        "model_type": "llama",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 64,
        "num_hidden_layers": layers,
        "vocab_size": 8192,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    }
    return {
        "datacenters": [{"name": "here", "gpus": STAGES}],
        "cell": {"stages": STAGES, "microbatches": STAGES, "micro_batch": 1},
        "model": {"config": config, "seq": 128},
        "device": {"kind": "cpu", "dtype": "fp32"},
        "optimizer": {"steps": 3, "lr": 1e-4, "clip": 1.0},
        "strategy": {"kind": "pipeline", "policy": "1f1b"},
    }


class Watched:
    """A run and the most memory that each of its ranks took."""

    def __init__(self, job: TrainJob, log_dir: str) -> None:
        self.result: dict[str, Any] | None = None
        self.problems: list[str] = []
        self._pids: dict[int, int] = {}
        self._before: dict[int, int] = {}
        self.peak: dict[int, int] = {}
        self._group = RankGroup(single_machine(job, run="train-1b", log_dir=log_dir), self._on_event)

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Result):
            self.result = event.to_dict()
        elif isinstance(event, Rank):
            if event.pid:
                self._pids[event.rank] = event.pid
            if event.state == "failed":
                self.problems.append(event.detail or f"rank {event.rank} failed")

    def run(self) -> None:
        """Train to the end, and look at the ranks meanwhile."""
        self._group.start()
        try:
            deadline = time.monotonic() + LONGEST_RUN_S
            while not self._group.wait(SAMPLE_S) and time.monotonic() < deadline:
                for rank, pid in list(self._pids.items()):
                    self._look(rank, pid)
        finally:
            self._group.stop(0.0)

    def _look(self, rank: int, pid: int) -> None:
        try:
            here = _status(pid)
            if rank not in self._before:
                self._before[rank] = _status(here["PPid"])["RssAnon"]  # in kB, as the kernel says it
            anonymous = here["VmHWM"] - here["RssFile"] - here["RssShmem"]
        except (FileNotFoundError, ProcessLookupError, KeyError):
            return  # it has ended, and a process that is not waited for has no memory; what was seen stays
        self.peak[rank] = 1024 * (anonymous - self._before[rank])


def _status(pid: int) -> dict[str, int]:
    """Numbers of /proc/PID/status by name; memory in kB."""
    lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {name.rstrip(":"): int(values[0]) for name, *values in lines if values and values[0].isdigit()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=16, help="of the model; at least 4 (16)")
    parser.add_argument("--document", action="store_true", help="print the job for `meridian train` and end")
    arguments = parser.parse_args()
    values = document(arguments.layers)
    if arguments.document:
        print(json.dumps(values, indent=1))
        return
    job = parse(TrainJob, values)
    planned = [stage.total_bytes for stage in stage_memory(job)]
    free = psutil.virtual_memory().available
    if sum(planned) + ROOM_BYTES > free:
        needed = (sum(planned) + ROOM_BYTES) / 1e9
        sys.exit(f"needs {needed:.1f} GB of memory, {free / 1e9:.1f} GB are free: take fewer --layers")
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        watched = Watched(job, folder)
        watched.run()
    if watched.result is None:
        sys.exit("; ".join(watched.problems) or "the run did not end in time")
    sys.exit(_report(job, planned, watched, time.monotonic() - began))


def _report(job: TrainJob, planned: list[int], watched: Watched, took_s: float) -> bool:
    """Print the table; whether a stage is too far off."""
    assert watched.result is not None
    off, lines = [], []
    for stage, bytes_planned in enumerate(planned):
        off.append(bytes_planned / watched.peak[stage] - 1)
        lines.append(
            [
                f"{stage}",
                f"{stage_parameters(job, stage):,}",
                f"{bytes_planned / 1e9:.3f}",
                f"{watched.peak[stage] / 1e9:.3f}",
                f"{100 * off[-1]:+.1f}",
            ]
        )
    print("\n".join(render(HEAD, lines)))
    losses = ", ".join(f"{loss:.3f}" for loss in watched.result["losses"])
    print(
        f"\n{job.model.shape.parameters:,} parameters, {job.tokens_per_step} tokens an iteration of "
        f"{watched.result['iteration_ms']['median'] / 1e3:.1f} s, {took_s:.0f} s in all; losses {losses}"
    )
    return max(map(abs, off)) > MOST_OFF


if __name__ == "__main__":
    main()
