"""`make chaos`: random, overlapping faults while the whole product trains and sells; then all must be well.

    python -m tests.chaos [--seeds N …] [--faults N] [--minutes M]

Half of the faults of a seed strike a run that sells its bubbles and whose ranks nobody kills, half one that
recovers and whose ranks, hosts and shims are killed too. The seed decides which faults strike when, and for
how long. Which rank is killed is chance. Exit status 1 where an invariant is broken, each with a line.
"""

import argparse
import random
import sys
import time

from tests.chaos.clocks import movable_clocks
from tests.chaos.faults import CLOCKS
from tests.chaos.round import Round, log
from tests.chaos.undisturbed import losses
from tests.demo_alone.own import demo_of_its_own, small_disk

DISK_MB = 2000


def rounds_of(seed: int, faults: int, minutes: float) -> list[Round]:
    """Play both rounds of a seed."""
    draw = random.Random(seed)
    played = []
    for recovers in (False, True):
        log(f"seed {seed}: {'a run that recovers' if recovers else 'a run that sells its bubbles'}")
        count = faults // 2 + (faults % 2 if recovers else 0)
        with small_disk(DISK_MB) as disk, demo_of_its_own(sells=not recovers, folder=disk) as demo:
            played.append(Round(demo, draw, recovers=recovers))
            played[-1].play(count, gap_s=minutes * 60 / max(1, faults))
        for line in played[-1].broken:
            log(f"BROKEN: {line}")
    return played


def wrong_losses(played: list[Round]) -> list[str]:
    """Losses that an undisturbed run of the same job has not, bit by bit."""
    steps = 1 + max(max(one.losses, default=0) for one in played)
    log(f"the same job undisturbed, {steps} iterations")
    right = losses(played[0].document, steps)
    pairs = [(number, loss) for one in played for number, loss in one.losses.items()]
    log(f"{len(pairs)} losses compared")
    return [f"iteration {n}: loss {loss!r}, not {right[n]!r}" for n, loss in pairs if loss != right[n]]


def main() -> int:
    """Entry point of ``python -m tests.chaos``."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="each decides faults and times (1)")
    parser.add_argument("--faults", type=int, default=200, help="for each seed (200)")
    parser.add_argument("--minutes", type=float, default=40.0, help="over which those are spread (40)")
    arguments = parser.parse_args()
    if arguments.faults < 1:
        parser.error(f"--faults {arguments.faults}: must be at least 1")
    if not 0 < arguments.minutes < float("inf"):
        parser.error(f"--minutes {arguments.minutes}: must be above 0")
    began = time.monotonic()
    with movable_clocks(CLOCKS) as movable:
        if not movable:
            log("no C compiler: clocks do not jump")
        played = [
            one for seed in arguments.seeds for one in rounds_of(seed, arguments.faults, arguments.minutes)
        ]
    wrong = wrong_losses(played)
    for line in wrong[:20]:
        log(f"BROKEN: {line}")
    broken = sum(len(one.broken) for one in played) + len(wrong)
    minutes = (time.monotonic() - began) / 60
    log(f"{arguments.faults * len(arguments.seeds)} faults in {minutes:.0f} min, {broken} invariants broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
