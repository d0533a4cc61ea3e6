"""Random failures in one long emulated run: `python -m benchmarks.recovery [--kills 50] [--seed 1]`.

Prints what each cost and a row per kind, and compares the outcome with that of the undisturbed run.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.runtime.kills import KINDS, STEPS_A_KILL, Kill, disturbed, undisturbed


def table(kills: Sequence[Kill]) -> list[str]:
    """Rows by kind: how often, and median, 95 % and longest time until the run runs again."""
    rows = [f"{'kind':12s}{'count':>6s}{'noticed':>9s}{'p50':>8s}{'p95':>8s}{'max':>8s}   caught up p95"]
    for kind in (*KINDS, "all"):
        of = [kill for kill in kills if kind in (kill.kind, "all")]
        if not of:
            continue
        runs, caught = [k.runs_s for k in of], [k.recovered_s for k in of]
        noticed = max(kill.noticed_s for kill in of)
        rows.append(
            f"{kind:12s}{len(of):6d}{noticed:9.2f}{median(runs):8.2f}{np.percentile(runs, 95):8.2f}"
            f"{max(runs):8.2f}{np.percentile(caught, 95):16.2f}"
        )
    return rows


def main() -> int:
    """Print the table; 1 where the outcome differs or the bars are missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="0: some more than the failures take")
    arguments = parser.parse_args()
    steps = arguments.steps or 20 + STEPS_A_KILL * arguments.kills
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        kills, result, _ = disturbed(
            arguments.kills, arguments.seed, steps, Path(folder) / "disturbed", say=print
        )
        took = time.monotonic() - began
        whole = undisturbed(steps, Path(folder) / "whole")
    print("\n".join(table(kills)))
    p95 = float(np.percentile([kill.runs_s for kill in kills], 95))
    same = result["params_sha256"] == whole["params_sha256"]
    last = abs(result["losses"][-1] / whole["losses"][-1] - 1)
    print(
        f"{len(kills)} failures in {took:.0f} s and {steps} steps; last loss differs by {last:.1e}, "
        f"parameters {'are the same to the bit' if same else 'DIFFER'}; "
        f"runs again after {p95:.1f} s (p95, bar 10 s)"
    )
    noticed = max(kill.noticed_s for kill in kills)
    return 0 if last <= 1e-9 and p95 < 10 and noticed < 5 else 1


if __name__ == "__main__":
    raise SystemExit(main())
