"""What all processes of a run take over 1,000 iterations: ``python -m benchmarks.memory``.

The cell of the example `atlas` (twelve ranks, 6 stages × 2 pipelines in three data centres), with ops,
messages and delays a quarter as long. Proportional memory (PSS) every second, and its median slope (Theil and
Sen, with its 95 % interval) after a fifth of the run.
"""

import json
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

import psutil
from scipy.stats import theilslopes

from benchmarks.train import example
from engine.job.changed import changed

STEPS = 1000
PART = 4
SAMPLE_S = 1.0
Sample = tuple[float, float]  # time.monotonic(), MB


def main() -> None:
    """Run the job, and print what its processes took."""
    samples, result = sampled(job())
    iteration_ms = result["iteration_ms"]["median"]
    shown = [samples[len(samples) * part // 10] for part in (2, 4, 6, 8)] + samples[-1:]
    print("PSS in MB, from a fifth of the run on:", ", ".join(f"{mb:.1f}" for _, mb in shown))
    seconds, used_mb = zip(*samples[len(samples) // 5 :], strict=True)
    slope = theilslopes(used_mb, seconds)
    growth, least, most = (
        one * STEPS * iteration_ms / 1e3 for one in (slope.slope, slope.low_slope, slope.high_slope)
    )
    print(f"{iteration_ms:.1f} ms an iteration; {growth:+.1f} MB in {STEPS} ({least:+.1f} to {most:+.1f})")


def job() -> dict[str, Any]:
    """The example, shorter."""
    of = example("atlas")
    shorter = {
        "optimizer.steps": STEPS,
        "cell.activation_bytes": of["cell"]["activation_bytes"] // PART,
        "device.times_ms": {name: ms / PART for name, ms in of["device"]["times_ms"].items()},
        "links": [{**link, "latency_ms": link["latency_ms"] / PART} for link in of["links"]],
    }
    return changed(of, shorter)


def sampled(document: dict[str, Any]) -> tuple[list[Sample], dict[str, Any]]:
    """Train a job; what its processes took meanwhile, and its result."""
    call = [sys.executable, "-m", "engine.cli", "train", "-", "--json"]
    samples = []
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            call, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as run,
    ):
        assert run.stdin
        assert run.stdout
        run.stdin.write(json.dumps(document))
        run.stdin.close()
        while run.poll() is None:
            samples.append((time.monotonic(), _pss_mb(psutil.Process(run.pid))))
            time.sleep(SAMPLE_S)
        answer = run.stdout.read()
        if run.returncode:
            errors.seek(0)
            sys.exit(errors.read())
    return samples[:-2], json.loads(answer)  # at the last processes may have been ending


def _pss_mb(top: psutil.Process) -> float:
    total = 0
    for process in [top, *top.children(recursive=True)]:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total / 1e6


if __name__ == "__main__":
    main()
