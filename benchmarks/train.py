"""Runs the example jobs and prints measured beside simulated: ``python -m benchmarks.train``."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parent.parent / "examples"


def run(name: str) -> dict[str, Any]:
    """Train one example job and return its result."""
    call = [sys.executable, "-m", "engine.cli", "train", str(EXAMPLES / f"{name}.json"), "--json"]
    return json.loads(subprocess.run(call, check=True, capture_output=True, text=True, timeout=600).stdout)


def main() -> None:
    """Print the table, and the gain of atlas over varuna on single TCP beside the simulator's."""
    results = {name: run(name) for name in ("demo", "atlas", "varuna-single-tcp")}
    print(
        f"{'job':20} {'median ms':>10} {'simulated':>10} {'deviation':>10} {'started s':>10} {'overruns':>9}"
    )
    for name, result in results.items():
        time = result["iteration_ms"]
        print(
            f"{name:20} {time['median']:10.1f} {time['simulated']:10.1f} {result['deviation']:+10.1%} "
            f"{result['startup_s']:10.1f} {result['overruns']:9}"
        )
    gain = {key: _gain(results, key) for key in ("median", "simulated")}
    print(
        f"atlas over varuna on single TCP: {gain['median']:.2f} x measured, "
        f"{gain['simulated']:.2f} x simulated"
    )


def _gain(results: dict[str, dict[str, Any]], key: str) -> float:
    return results["varuna-single-tcp"]["iteration_ms"][key] / results["atlas"]["iteration_ms"][key]


if __name__ == "__main__":
    main()
