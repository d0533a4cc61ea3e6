"""Runs training jobs and prints measured beside simulated: ``python -m benchmarks.train``.

Without arguments the three example jobs. ``--policies`` runs the demo cell, with a model of twelve layers,
under every policy; ``--overhead`` one stage of one pipeline, where all that is not an op is the executor's.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine.job.changed import changed
from engine.schedule.scenario import POLICIES

EXAMPLES = Path(__file__).parent.parent / "examples"
LONGEST_RUN_S = 900


def train(document: dict[str, Any]) -> dict[str, Any]:
    """Train one job and return its result."""
    call = [sys.executable, "-m", "engine.cli", "train", "-", "--json"]
    done = subprocess.run(
        call, check=True, capture_output=True, text=True, timeout=LONGEST_RUN_S, input=json.dumps(document)
    )
    return json.loads(done.stdout)


def example(name: str) -> dict[str, Any]:
    """The document of an example job."""
    return json.loads((EXAMPLES / f"{name}.json").read_text())


def examples() -> None:
    """The example jobs, and the gain of atlas over varuna on single TCP beside the simulator's."""
    results = {name: train(example(name)) for name in ("demo", "atlas", "varuna-single-tcp")}
    _print_table(results)
    gain = {key: _gain(results, key) for key in ("median", "simulated")}
    print(
        f"atlas over varuna on single TCP: {gain['median']:.2f} x measured, "
        f"{gain['simulated']:.2f} x simulated"
    )


def policies(names: list[str]) -> None:
    """The demo cell under each policy; times are split so that those which split B can."""
    demo = example("demo")
    demo["model"] = {**demo["model"], "layers": 12}
    demo["device"]["times_ms"] |= {"backward": 20, "weight": 20}
    demo["datacenters"][2]["gpus"] = demo["datacenters"][0]["gpus"]
    ends = [demo["datacenters"][i]["name"] for i in (0, 2)]
    demo["links"].append({"between": ends, "latency_ms": 10, "bandwidth_gbps": 1.0})  # for the loop
    demo["strategy"]["time_limit_s"] = 10
    results = {}
    for name in names:
        # Interleaving needs microbatches by the number of stages.
        microbatches = 6 if name == "interleaved" else demo["cell"]["microbatches"]
        of_policy = {"strategy.policy": name, "cell.microbatches": microbatches}
        results[name] = train(changed(demo, of_policy))
    _print_table(results)


def overhead() -> None:
    """Iteration less its ops, over the iteration, on one GPU."""
    document = {
        "datacenters": [{"name": "here", "gpus": 1}],
        "cell": {"stages": 1, "microbatches": 8, "micro_batch": 4},
        "model": {"layers": 4, "hidden": 256, "heads": 4, "seq": 128},
        "optimizer": {"steps": 12},
        "strategy": {"kind": "pipeline", "policy": "1f1b"},
    }
    result = train(document)
    optimizer = result["optimizer_ms"] / result["iteration_ms"]["median"]
    used = result["utilization"]["measured"] + optimizer
    print(
        f"one stage, one pipeline: {result['iteration_ms']['median']:.1f} ms an iteration, "
        f"{1 - used:.2%} of it outside of ops (optimizer {optimizer:.2%} counted as one)"
    )


def main() -> None:
    """Read what to run, and run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policies", nargs="*", choices=POLICIES, metavar="POLICY", help="default: all")
    parser.add_argument("--overhead", action="store_true")
    arguments = parser.parse_args()
    if arguments.policies is not None:
        policies(arguments.policies or list(POLICIES))
    if arguments.overhead:
        overhead()
    if arguments.policies is None and not arguments.overhead:
        examples()


def _print_table(results: dict[str, dict[str, Any]]) -> None:
    print(
        f"{'job':20} {'median ms':>10} {'simulated':>10} {'deviation':>10} {'started s':>10} {'overruns':>9}"
    )
    for name, result in results.items():
        time = result["iteration_ms"]
        print(
            f"{name:20} {time['median']:10.1f} {time['simulated']:10.1f} {result['deviation']:+10.1%} "
            f"{result['startup_s']:10.1f} {result['overruns']:9}"
        )


def _gain(results: dict[str, dict[str, Any]], key: str) -> float:
    return results["varuna-single-tcp"]["iteration_ms"][key] / results["atlas"]["iteration_ms"][key]


if __name__ == "__main__":
    main()
