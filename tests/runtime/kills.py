"""Random failures in one long run over several machines, all of them on this one.

Six ranks (three stages, two pipelines) on four machines in two data centres. At random moments a rank, a
machine's host process with its ranks and their memory, the WAN link or a whole data centre goes away.
"""

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.job.job import TrainJob
from tests.runtime.jobs import Run, job
from tests.runtime.machines import Machines

SPLIT = [(0, 1), (3, 4), (2,), (5,)]
KINDS = {"rank": 5, "agent": 3, "link": 1, "datacenter": 1}  # and how often, of ten
STEPS_A_KILL = 10  # more than pass between two failures
CUT_S = 5.0  # longer than a network may be silent
TIMES = {"forward": 10.0, "backward": 20.0, "recompute": 10.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One failure: seconds until it was noticed, until all ranks ran, until nothing was left to redo."""

    kind: str
    source: str
    noticed_s: float
    runs_s: float
    recovered_s: float


def job_of(steps: int, folder: Path, **changes: Any) -> TrainJob:
    """The cell, on device emulated, in fp64."""
    cell = {
        "dtype": "fp64",
        "steps": steps,
        "device": "emulated",
        "times_ms": TIMES,
        "checkpoint": {"dir": str(folder / "saved"), "every": 10},
        "microbatches": 2,
        "links": [{"between": ["north", "south"], "latency_ms": 10, "bandwidth_gbps": 5}],
    }
    return job(**{**cell, **changes})


def undisturbed(steps: int, folder: Path) -> dict[str, Any]:
    """The result of the same cell without failures. It computes the same bits and waits for no op."""
    return Run(job_of(steps, folder, device="cpu", times_ms=None), str(folder / "log")).result(3600.0)


def strike(run: Machines, kind: str, random_: random.Random) -> None:
    """Let something go away; machines are started again as whatever watches over an agent does."""
    if kind == "rank":
        run.kill_rank(random_.randrange(6))
    elif kind == "agent":
        run.kill_machines(random_.randrange(4))
    elif kind == "link":
        run.cut("north", "south", CUT_S)
    else:
        run.kill_machines(*random_.choice([(0, 1), (2, 3)]))


def one(run: Machines, kind: str, random_: random.Random) -> Kill:
    """Strike, and wait until the run has done again whatever it had done."""
    time.sleep(random_.uniform(0.0, 0.6))
    spans = run.of_kind("spans")
    attempt, reached = spans[-1]["attempt"], max(e["iteration"] for e in spans)
    events = len(run.of_kind("recovery"))
    began, unix = time.monotonic(), time.time()
    strike(run, kind, random_)
    run.wait(lambda: len(run.of_kind("recovery")) > events, "the recovery", 90.0)
    recovery = run.of_kind("recovery")[events]
    run.wait(lambda: _again(run, attempt, reached), "the iteration that was lost", 90.0)
    return Kill(
        kind=kind,
        source=recovery["from"],
        noticed_s=recovery["noticed"] - unix,
        runs_s=recovery["t"] - unix,
        recovered_s=time.monotonic() - began,
    )


def _again(run: Machines, attempt: int, iteration: int) -> bool:
    """Whether a later attempt has done an iteration."""
    return any(e["attempt"] > attempt and e["iteration"] >= iteration for e in run.of_kind("spans"))


def disturbed(
    kills: int, seed: int, steps: int, folder: Path, *, say: Callable[[str], None]
) -> tuple[list[Kill], dict[str, Any], Machines]:
    """A run of at least `steps` steps with so many failures: what they cost, and its result."""
    random_ = random.Random(seed)
    kinds = random_.choices(list(KINDS), weights=list(KINDS.values()), k=kills)
    done = []
    with Machines(job_of(steps, folder, recovery={"attempts": kills + 10}), folder, SPLIT) as run:
        run.at_step(2)
        for number, kind in enumerate(kinds, start=1):
            kill = one(run, kind, random_)
            done.append(kill)
            say(
                f"{number:3d} {kind:10s} noticed {kill.noticed_s:5.2f} s, runs {kill.runs_s:5.2f} s, "
                f"caught up {kill.recovered_s:5.2f} s, from {kill.source}"
            )
        return done, run.result(600.0), run
