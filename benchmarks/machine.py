"""How fast this machine computes now: ``python -m benchmarks.machine``.

Fixed loops, seven times each. Put its line beside any time that you write down, so that times of different
hours and machines can be compared. One machine was seen to differ by a factor of two from hour to hour.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

# NumPy on one core, as a rank computes.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import numpy as np  # noqa: E402

REPEATS = 7
TURNS = 2_000_000
SIDE = 768
COPIED_BYTES = 256 * 2**20


def loop() -> int:
    """Interpreted Python."""
    total = 0
    for turn in range(TURNS):
        total += turn % 7
    return total


def product() -> Callable[[], object]:
    """A product of two matrices of 768 × 768 in fp64."""
    a = np.random.default_rng(0).random((SIDE, SIDE))
    return lambda: a @ a


def copy() -> Callable[[], object]:
    """256 MiB copied in main memory."""
    source = np.ones(COPIED_BYTES, np.uint8)
    into = np.empty_like(source)
    return lambda: np.copyto(into, source)


def median_ms(run: Callable[[], object]) -> float:
    """Median milliseconds of a call, after one that is not counted."""
    run()
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        taken.append(time.perf_counter() - start)
    return 1e3 * statistics.median(taken)


def main() -> None:
    """Print one line."""
    argparse.ArgumentParser(prog="python -m benchmarks.machine", description=__doc__).parse_args()
    figures = {"Python loop": loop, "product": product(), "copy": copy()}
    line = ", ".join(f"{name} {median_ms(run):.1f} ms" for name, run in figures.items())
    print(f"{line}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
