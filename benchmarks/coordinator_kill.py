"""How soon a killed prefill coordinator is back: `python -m benchmarks.coordinator_kill [--kills 10]`.

A small emulated run prefills, and the process of its coordinator is killed again and again. A time runs from
a kill until the next coordinator is open. Kills come 11 s apart: one that dies within 10 s waits on purpose.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.run.tiny import write_tiny
from tests.runtime.prefill.live import LiveRun

APART_S = 11.0
BAR_S = 2.0


async def back_s(run: LiveRun) -> float:
    """Seconds from the kill of the coordinator in DC north until the next one is open."""
    before = len(run.of_kind("prefill_coordinator"))
    process = run.coordinator_process("north")
    killed = time.monotonic()
    process.kill()
    await run.until("the closing", lambda: len(run.of_kind("prefill_coordinator")) > before, 5)
    await run.until("another coordinator", lambda: run.coordinator("north"), 60)
    return time.monotonic() - killed


async def kills(run: LiveRun, count: int) -> list[float]:
    """`count` kills, one after the other."""
    await run.until("both coordinators", lambda: run.coordinator("north") and run.coordinator("south"))
    took = []
    for _ in range(count):
        await asyncio.sleep(APART_S)
        took.append(await back_s(run))
    return took


def main() -> int:
    """Print the row; 1 where the bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "tiny"
        write_tiny(model, steps=0, seed=5)
        run = LiveRun(model, Path(folder) / "log")
        try:
            took = asyncio.run(kills(run, arguments.kills))
        finally:
            run.group.stop(0.0)
    p95 = float(np.percentile(took, 95))
    print(f"{'kills':>6s}{'p50 s':>8s}{'p95 s':>8s}{'max s':>8s}   bar {BAR_S:.0f} s")
    print(f"{len(took):6d}{np.median(took):8.2f}{p95:8.2f}{max(took):8.2f}")
    return 0 if max(took) < BAR_S else 1


if __name__ == "__main__":
    raise SystemExit(main())
