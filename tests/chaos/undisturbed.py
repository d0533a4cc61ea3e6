"""The losses of a run's job when nothing disturbs it: the same ranks on the CPU, as fast as they can."""

import json
import subprocess
import sys
from typing import Any

from tests.demo.harness import ROOT

QUICK = {"latency_ms": 0.0, "bandwidth_gbps": 100.0}


def losses(document: dict[str, Any], steps: int) -> list[float]:
    """Losses of the first `steps` iterations. Raises CalledProcessError where it does not train.

    document : of the job, in sections. Its emulated times and links decide when something is computed, never
        what.
    """
    cell = {name: value for name, value in document["cell"].items() if name != "activation_bytes"}
    quick = {
        **{name: document[name] for name in ("model", "strategy", "datacenters")},
        "cell": cell,
        "links": [{"between": link["between"], **QUICK} for link in document["links"]],
        "device": {"kind": "cpu"},
        "optimizer": {**document["optimizer"], "steps": steps},
    }
    train = [sys.executable, "-m", "engine.cli", "train", "-", "--json"]
    done = subprocess.run(
        train, input=json.dumps(quick).encode(), capture_output=True, check=True, cwd=ROOT, timeout=1800
    )
    answer: list[float] = json.loads(done.stdout)["losses"]
    return answer
