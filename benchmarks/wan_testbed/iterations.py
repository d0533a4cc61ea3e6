"""Whole training iterations over the testbed, each step from torch's 1F1B to the searched schedule.

Three pipelines of four stages on three data centres (2, 1, 1); times of Atlas's testbed × 10, rates ÷ 10,
40 ms kept; GPT-A's messages; full recomputation everywhere. Beside each row stands what the simulator says
of it, with the rate of one connection as a plain program has measured it.
"""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.wan_testbed.torch_1f1b import Setting
from benchmarks.wan_testbed.tun import Wan, address
from engine.errors import Infeasible
from engine.inputs import parse
from engine.runtime.job import TrainJob
from engine.runtime.launch import LaunchSpec, single_machine
from engine.runtime.predict import predict
from engine.schedule import build
from engine.schedule.scenario import Scenario

DC_OF_STAGE = (0, 0, 1, 2)
PIPELINES, MICROBATCHES = 3, 4
NODES = tuple(PIPELINES * DC_OF_STAGE.count(dc) for dc in range(3))
FORWARD_MS = 179.0  # C = 3: a message takes a node pair's cap as long as three forwards
MESSAGE_BYTES = 4096 * 4096 * 2
LATENCY_MS = 40.0
RENDEZVOUS_PORT = 9600
PORTS = (9700, 9899)
LONGEST_S = 900.0
SEARCH_S = 20.0


@dataclass(frozen=True, kw_only=True)
class Row:
    """A step of the table; iterations that count, after one that opens TCP's windows."""

    name: str
    policy: str
    sharing: str = "spatial"
    connections: int | str = 1
    iterations: int = 3
    torch: bool = False


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Seconds of an iteration, measured and as the simulator has it; shares of one core meanwhile."""

    row: Row
    seconds: float
    simulated_s: float
    forwarder: float
    machine: float


ROWS = (
    Row(name="torch 1F1B, gloo, 1 connection", policy="1f1b", iterations=1, torch=True),
    Row(name="our executor, 1F1B, 1 connection", policy="1f1b", iterations=1),
    Row(name="  + 18 connections", policy="1f1b", connections=18),
    Row(name="  + shared in time (atlas)", policy="atlas", sharing="temporal", connections=18),
    Row(name="  + searched schedule (auto)", policy="auto", sharing="temporal", connections=18),
)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Bytes per second: of one connection as measured, and the most of a node pair."""

    connection: float
    pair: float

    def of(self, connections: int | str) -> float:
        """Of a node pair with so many connections."""
        return min(int(connections) * self.connection, self.pair)


def measure(made: Wan, row: Row, rates: Rates, forwarder: psutil.Process) -> Measured:
    """Run one row; raises RuntimeError where it does not end well."""
    job, simulated_s = planned(row, rates)
    before, since = sum(forwarder.cpu_times()[:2]), time.monotonic()
    psutil.cpu_percent()
    seconds = torch_iterations(made, row) if row.torch else our_iterations(made, job, row)
    lasted = time.monotonic() - since
    return Measured(
        row=row, seconds=median(seconds), simulated_s=simulated_s,
        forwarder=(sum(forwarder.cpu_times()[:2]) - before) / lasted, machine=psutil.cpu_percent() / 100,
    )  # fmt: skip


def planned(row: Row, rates: Rates) -> tuple[TrainJob, float]:
    """The job of a row with its schedule, and seconds of an iteration by the simulator."""
    # Torch has no recomputation of its own here: its backward lasts as long as both.
    recompute = 0.0 if row.torch else FORWARD_MS
    document = {
        "datacenters": [{"name": name, "gpus": gpus} for name, gpus in zip("abc", NODES, strict=True)],
        "links": [
            {"between": list(pair), "latency_ms": LATENCY_MS, "bandwidth_gbps": rates.pair * 8e-9}
            for pair in ("ab", "bc", "ac")
        ],
        "stages": len(DC_OF_STAGE), "dc_of_stage": list(DC_OF_STAGE), "pipelines": PIPELINES,
        "microbatches": MICROBATCHES, "micro_batch": 1, "policy": row.policy, "sharing": row.sharing,
        "connections": row.connections, "activation_bytes": MESSAGE_BYTES, "device": "emulated",
        "times_ms": {
            "forward": FORWARD_MS, "backward": 3 * FORWARD_MS - recompute, "recompute": recompute,
        },
        "model": {"layers": 4, "hidden": 32, "heads": 2, "seq": 32},
        "steps": row.iterations + 1, "lr": 1e-3, "seed": 0, "time_limit_s": SEARCH_S,
    }  # fmt: skip
    if row.policy in ("atlas", "auto"):
        del document["sharing"]  # their own
    job = parse(TrainJob, document)
    scenario = of_rate(job.scenario, rates.of(row.connections))
    built = build(scenario)
    if isinstance(built, Infeasible):
        raise RuntimeError(f"{row.name}: {built.reason}")
    none = (0.0,) * job.stages
    found = predict(job, schedule=built.schedule, scenario=scenario, allreduce_s=none, optimizer_s=none)
    return parse(TrainJob, {**document, "schedule": str(built.schedule)}), found.iteration_s


def of_rate(scenario: Scenario, bytes_per_s: float) -> Scenario:
    """`scenario` with WAN hops of this rate: the paper's window is ten times as large as this network's."""
    values = scenario.model_dump(exclude_none=True)
    values["wan"] = {"latency": LATENCY_MS, "transfer": 1e3 * MESSAGE_BYTES / bytes_per_s}
    return parse(Scenario, values)


def our_iterations(made: Wan, job: TrainJob, row: Row) -> list[float]:
    """Seconds of the iterations that count, from one loss to the next."""
    with tempfile.TemporaryDirectory() as folder:
        spec = Path(folder) / "spec.json"
        spec.write_text(placed(job, folder).to_json())
        with every_dc(made, "cell", str(spec)) as processes:
            events = [json.loads(line) for line in lines_of(processes)]
    told = {event["iteration"]: event["t"] for event in events if event["kind"] == "step"}
    if len(told) != row.iterations + 1:
        raise RuntimeError(f"{row.name}: {len(told)} iterations; {events[-1:]}")
    return [told[i + 1] - told[i] for i in range(row.iterations)]


def placed(job: TrainJob, folder: str) -> LaunchSpec:
    """The launch of `job` with every rank at an address of its own."""
    spec, used = single_machine(job, run="testbed", log_dir=f"{folder}/log"), [0, 0, 0]
    ranks = []
    for rank in spec.ranks:
        ranks.append(replace(rank, host=address(rank.dc, used[rank.dc]), node=f"{rank.dc_name}-{rank.gpu}"))
        used[rank.dc] += 1
    return replace(
        spec, ranks=tuple(ranks), rendezvous_host=ranks[0].host, rendezvous_port=RENDEZVOUS_PORT,
        ports=PORTS, real_wan=True,
    )  # fmt: skip


def torch_iterations(made: Wan, row: Row) -> list[float]:
    """The same of torch's own pipeline."""
    setting = Setting(
        dc_of_stage=DC_OF_STAGE, pipelines=PIPELINES, microbatches=MICROBATCHES, forward_s=FORWARD_MS / 1e3,
        backward_s=3 * FORWARD_MS / 1e3, message_bytes=MESSAGE_BYTES, iterations=row.iterations + 1,
        store=f"tcp://{address(0, 0)}:{RENDEZVOUS_PORT}", interface="wan",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "setting.json"
        path.write_text(setting.to_json())
        with every_dc(made, "torch_1f1b", str(path)) as processes:
            lines = list(lines_of(processes))
    if len(lines) != row.iterations + 1:
        raise RuntimeError(f"{row.name}: {len(lines)} iterations")
    return [float(line) for line in lines[1:]]


@contextlib.contextmanager
def every_dc(made: Wan, module: str, path: str) -> Iterator[list[subprocess.Popen[str]]]:
    """A process of `module` in each data centre; ended with the context, whatever happens."""
    processes: list[subprocess.Popen[str]] = []
    try:
        for dc in range(len(NODES)):
            command = (sys.executable, "-m", f"benchmarks.wan_testbed.{module}", path, str(dc))
            processes.append(
                subprocess.Popen(
                    made.run(dc, *command), stdout=subprocess.PIPE, text=True, start_new_session=True
                )
            )
        yield processes
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


def lines_of(processes: list[subprocess.Popen[str]]) -> Iterator[str]:
    """What the first data centre's process prints until it ends; a watchdog ends one that hangs."""
    until = time.monotonic() + LONGEST_S
    first = processes[0]
    assert first.stdout is not None
    for line in first.stdout:
        yield line
        if time.monotonic() > until:
            raise RuntimeError(f"not done after {LONGEST_S:g} s")
    for process in processes:
        if process.wait(60):
            raise RuntimeError(f"ended with status {process.returncode}")


def table(rows: list[Measured]) -> Iterator[str]:
    """Lines of the table, ratios to its first row."""
    first = rows[0]
    yield f"{'an iteration':36} seconds   simulated  times the first  simulated      off  forwarder  machine"
    for row in rows:
        measured, simulated = first.seconds / row.seconds, first.simulated_s / row.simulated_s
        yield (
            f"{row.row.name:36} {row.seconds:7.2f} {row.simulated_s:11.2f} {measured:16.1f} {simulated:10.1f}"
            f" {measured / simulated - 1:+8.1%} {row.forwarder:10.0%} {row.machine:8.0%}"
        )


__all__: list[Any] = ["NODES", "ROWS", "Measured", "Rates", "Row", "measure", "table"]
