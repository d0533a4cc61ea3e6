"""Time and memory of `meridian analyze` on traces of 10 million events, each in a process of its own.

parquet: the AR job of tests/traces, its steps again and again. perfetto: a simulated 1F1B, iteration after
iteration, indented as torch.profiler indents. Files are written first and do not count.

Run: python -m benchmarks.analyze [EVENTS]
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from engine.analyze.formats import load
from engine.analyze.result import analyze
from engine.inputs import parse
from engine.schedule import Scenario
from engine.simulate import simulate
from engine.simulate.trace import chrome_trace

JOB = Path(__file__).parents[1] / "tests/traces/bytedance/trace-AR.parquet"
CELL = {
    "stages": 8,
    "pipelines": 8,
    "microbatches": 64,
    "times": {"forward": 1, "backward": 2},
    "policy": "1f1b",
}
EVENTS = 10_000_000


def write_parquet(path: Path, events: int) -> None:
    """The job's steps, numbered on, until there are so many ops."""
    job = pq.read_table(JOB)
    steps = job.column("step").to_numpy()
    times = -(-events // len(steps))
    with pq.ParquetWriter(path, job.schema) as file:
        for at in range(times):
            step = pa.array(steps + at * (int(steps.max()) + 1))
            file.write_table(job.set_column(job.schema.get_field_index("step"), "step", step))


def write_perfetto(path: Path, events: int) -> None:
    """Iterations of one schedule until there are so many events."""
    done = simulate(parse(Scenario, CELL))
    ops = [event for event in chrome_trace(done.spans(), "s")["traceEvents"] if event["ph"] == "X"]
    length = int(1e6 * (done.makespan or 0))
    texts = []
    for op in ops:
        text = json.dumps(op | {"ts": "TS", "args": op["args"] | {"iteration": "AT"}}, indent=4)
        texts.append((text.replace('"TS"', "%d").replace('"AT"', "%d"), int(op["ts"])))
    with path.open("w") as file:
        file.write('{"schemaVersion": 1, "traceEvents": [\n')
        for at in range(-(-events // len(ops))):
            rows = (text % (ts + at * length, at) for text, ts in texts)
            file.write((",\n" if at else "") + ",\n".join(rows))
        file.write("\n]}\n")


def measure(path: Path) -> None:
    """Print what one trace takes; runs in a process of its own."""
    begin = time.perf_counter()
    loaded = load(path)
    opened = time.perf_counter()
    answer = analyze(loaded).as_dict()
    done = time.perf_counter()
    cpu = sum(os.times()[:2])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    size = path.stat().st_size / 2**20
    print(f"{answer['format']:10} {answer['ops']:>12,} ops  {size:8,.0f} MiB  peak {peak:4.1f} GiB  ", end="")
    print(f"opened in {opened - begin:5.1f} s, analysed in {done - opened:5.1f} s, {cpu:5.1f} s of CPU")


def main(events: int) -> None:
    """Write and measure both."""
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, numpy {np.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        for name, write in (("trace.parquet", write_parquet), ("trace.json", write_perfetto)):
            path = Path(folder) / name
            write(path, events)
            subprocess.run([sys.executable, "-m", "benchmarks.analyze", str(path)], check=True)
            path.unlink()


if __name__ == "__main__":
    given = sys.argv[1] if len(sys.argv) > 1 else str(EVENTS)
    if given.isdigit():
        main(int(given))
    else:
        measure(Path(given))
