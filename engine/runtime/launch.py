"""Starting, supervising and stopping the ranks of one machine, without importing torch.

A small host process (engine.runtime.host) imports torch once and forks one process per rank. It lives in a
session of its own, so that Ctrl-C does not reach the ranks. Whatever ends this process,
``kill -9`` included, the host sees its standard input close and takes the ranks with it.
"""

import contextlib
import json
import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from engine.errors import InputError
from engine.inputs import parse
from engine.runtime.gpus import CUDA
from engine.runtime.job import TrainJob

EXIT_FINAL = 78  # of a rank that would end the same way again: bad input, a loss that went wrong (EX_CONFIG)
EXIT_PEER_LOST = 75  # of a rank that is not the cause: it lost another one (EX_TEMPFAIL)

log = logging.getLogger(__name__)

Event = dict[str, Any]
LOCALHOST = "127.0.0.1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAssignment:
    """Where one rank runs; rank = (shard · pipelines + pipeline) · stages + stage.

    shard : its number among the `tp` ranks that compute the stage (tensor parallelism); 0 leads them.
    """

    rank: int
    pipeline: int
    stage: int
    dc: int
    dc_name: str
    node: str
    host: str
    gpu: int
    shard: int = 0

    @property
    def leads(self) -> bool:
        """Whether this rank speaks for its stage: to other stages, in checkpoints, of what it measures."""
        return self.shard == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Disturbance:
    """What a run meets that its schedule does not know: for tests and what-if on a real run.

    op_factor : (stage, kind of op as its letter, factor) by which an emulated op takes longer.
    gpu_factor : (pipeline, stage, factor) by which every op of one emulated GPU does.
    link_factor : (from stage, factor) by which the WAN hop after that stage is slower, both ways.
    since : iteration, counted from 0, with which all of that begins.
    """

    op_factor: tuple[tuple[int, str, float], ...] = ()
    gpu_factor: tuple[tuple[int, int, float], ...] = ()
    link_factor: tuple[tuple[int, float], ...] = ()
    since: int = 0

    @property
    def slows(self) -> bool:
        """Whether anything is disturbed."""
        return bool(self.op_factor or self.gpu_factor or self.link_factor)

    def of_op(self, pipeline: int, stage: int, kind: str) -> float:
        """Factor on the duration of one kind of op on a GPU."""
        of_stage = next((f for s, k, f in self.op_factor if (s, k) == (stage, kind)), 1.0)
        return of_stage * next((f for p, s, f in self.gpu_factor if (p, s) == (pipeline, stage)), 1.0)

    def of_hop(self, stage: int) -> float:
        """Factor on the transfer time of the hop stage → stage + 1."""
        return next((f for s, f in self.link_factor if s == stage), 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """One run on one machine: the whole run's `ranks`, and those that are `local` here.

    rendezvous_port 0 lets the machine that hosts the store choose one (single-machine runs only).
    ports : first and last of the ports on which the local ranks may listen to others; None: any free one.
    life : of the run's ranks, counted from 1; they begin another one after a failure (recovery).
    start : of this generation on this machine, counted from 1; a lost machine is started again (recovery).
    """

    run: str
    generation: int
    job: TrainJob
    ranks: tuple[RankAssignment, ...]
    local: tuple[int, ...]
    rendezvous_host: str
    rendezvous_port: int
    secret: str
    log_dir: str
    disturbance: Disturbance = field(default_factory=Disturbance)
    ports: tuple[int, int] | None = None
    life: int = 1
    start: int = 1

    def to_json(self) -> str:
        """The spec as one line of JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["job"] = self.job.model_dump(mode="json", exclude_none=True)
        values["ranks"] = [asdict(assignment) for assignment in self.ranks]
        values["disturbance"] = asdict(self.disturbance)
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> "LaunchSpec":
        """The inverse of :meth:`to_json`. Raises InputError where the text is not a launch spec."""
        try:
            values = json.loads(text)
            job = parse(TrainJob, values.pop("job"), at="job")
            ranks = tuple(RankAssignment(**assignment) for assignment in values.pop("ranks"))
            disturbance = _disturbance(values.pop("disturbance", {}))
            ports = values.pop("ports", None)
            return cls(
                **{**values, "local": tuple(values["local"])}, job=job, ranks=ranks, disturbance=disturbance,
                ports=None if ports is None else _port_range(ports),
            )  # fmt: skip
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise InputError(
                "spec", str(error), "must be a launch spec as LaunchSpec.to_json writes it"
            ) from None

    @property
    def first_rank(self) -> int:
        """The rank that hosts the rendezvous store and reports the result."""
        return min(assignment.rank for assignment in self.ranks)


def _disturbance(values: dict[str, Any]) -> Disturbance:
    rows = {name: tuple(map(tuple, given)) for name, given in values.items() if name != "since"}
    return Disturbance(**rows, since=int(values.get("since", 0)))


def _port_range(ports: Any) -> tuple[int, int]:
    first, last = ports
    if not all(type(port) is int for port in ports) or not 1 <= first <= last <= 65535:
        raise InputError("ports", ports, "must be the first and the last of a range of ports, 1 to 65535")
    return first, last


def single_machine(
    job: TrainJob, *, run: str, log_dir: str, disturbance: Disturbance | None = None
) -> LaunchSpec:
    """Return the spec of a job whose ranks all run on this machine, a node per stage of a pipeline.

    On CUDA a rank takes the GPU with its own number, or under `devices` with that of its device; the ranks of
    a stage (tensor parallelism) take GPUs side by side. With `ranks_per_gpu` n, n consecutive numbers are one
    GPU.
    """
    ranks = []
    used = dict.fromkeys(range(len(job.datacenters)), 0)
    places = job.stages * len(job.dcs_of_pipeline)
    for place in range(places):
        pipeline, stage = divmod(place, job.stages)
        dc = job.dcs_of_pipeline[pipeline][stage]
        name = job.datacenters[dc].name
        for shard in range(job.tp):
            ranks.append(
                RankAssignment(
                    rank=shard * places + place,
                    pipeline=pipeline,
                    stage=stage,
                    dc=dc,
                    dc_name=name,
                    node=f"{name}-{used[dc]}",
                    host=LOCALHOST,
                    gpu=_gpu_of(job, place, used[dc]) * job.tp + shard,
                    shard=shard,
                )
            )
        used[dc] += 1
    ranks.sort(key=lambda assignment: assignment.rank)
    return LaunchSpec(
        run=run, generation=1, job=job, ranks=tuple(ranks), local=tuple(range(len(ranks))),
        rendezvous_host=LOCALHOST, rendezvous_port=0, secret=secrets.token_hex(16), log_dir=log_dir,
        disturbance=disturbance or Disturbance(),
    )  # fmt: skip


def _gpu_of(job: TrainJob, place: int, of_dc: int) -> int:
    """The GPU of a stage of a pipeline on this machine: real ones are shared by the DCs that it plays."""
    if job.device != CUDA:
        return of_dc
    if job.devices is None:
        return place // job.ranks_per_gpu
    placed = [device for devices in job.devices.pipelines for device in devices]
    joining = [joins.device for joins in job.swap.joins] if job.swap else []
    return int([*placed, *joining][place]) // job.ranks_per_gpu


# A tensor of some MB is a mapping of its own, new each time: in pages of 2 MB it costs one page fault instead
# of 512. torch reads this when it is loaded.
_HUGE_PAGES = {"THP_MEM_ALLOC_ENABLE": "1"}


class RankGroup:
    """The ranks of one run on this machine.

    Parameters
    ----------
    on_event : called from one thread with each event (docs/events.md). Ranks wait while it
        blocks for long, so it should hand over and return. What it raises is logged.
    """

    def __init__(self, spec: LaunchSpec, on_event: Callable[[Event], None]) -> None:
        self.spec = spec
        self._on_event = on_event
        self._host: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self._commands = threading.Lock()
        self._heard = False  # whether the host has said anything: before that it has started no rank
        self._stopped = False

    def start(self) -> None:
        """Start the host process, which starts the ranks; returns at once. Raises OSError."""
        os.makedirs(self.spec.log_dir, exist_ok=True)
        with open(os.path.join(self.spec.log_dir, "host.log"), "ab") as host_log:
            self._host = subprocess.Popen(
                [sys.executable, "-u", "-m", "engine.runtime.host"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=host_log,
                env={**_HUGE_PAGES, **os.environ},
                process_group=0,  # not a session: prefill of one host gives way to training of another
            )  # fmt: skip
        self._reader = threading.Thread(target=self._read, name=f"ranks-{self.spec.run}", daemon=True)
        self._reader.start()
        self._command(self.spec.to_json())

    def running(self) -> bool:
        """Whether ranks, or the process that hosts them, are still there."""
        return self._host is not None and (self._host.poll() is None or self._reading())

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until all ranks are gone and their events delivered; False if `timeout_s` passed first."""
        if self._reader is None or self._host is None:
            return True
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        # In short joins, so that Ctrl-C reaches a main thread that waits here.
        while self._reading():
            left = 0.2 if deadline is None else min(0.2, deadline - time.monotonic())
            if left <= 0:
                return False
            self._reader.join(left)
        self._host.wait()
        return True

    def stop(self, grace_s: float = 5.0) -> None:
        """Ask the ranks to end (SIGTERM), kill what is left after `grace_s`, and return when all are gone."""
        if self._host is None:
            return
        self._stopped = True
        if not self._heard:  # it imports for seconds and reads no command meanwhile; nothing is lost with it
            self._kill_all()
        self._command(f"stop {grace_s}")
        if not self.wait(grace_s + 5.0):
            self._kill_all()
            self.wait(5.0)

    def stop_at_boundary(self) -> None:
        """Ask the run to end after a whole iteration; returns at once. Only the first rank's machine can.

        That rank names the iteration (a `boundary` event), and all ranks finish it and report as usual.
        """
        if self._host is not None:
            self._command("boundary")

    def cut(self, a: str, b: str, seconds: float) -> None:
        """Cut the network between two data centres for ranks here, emulated or not; for drills."""
        if self._host is not None:
            self._command("cut " + json.dumps([a, b, seconds]))

    def _command(self, line: str) -> None:
        assert self._host is not None
        assert self._host.stdin is not None
        with self._commands, contextlib.suppress(BrokenPipeError, ValueError):
            self._host.stdin.write(line.encode() + b"\n")
            self._host.stdin.flush()

    def _kill_all(self) -> None:
        assert self._host is not None
        # The host leads its process group, and the ranks are in it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._host.pid, signal.SIGKILL)

    def _reading(self) -> bool:
        return self._reader is not None and self._reader.is_alive()

    def _read(self) -> None:
        assert self._host is not None
        assert self._host.stdout is not None
        ended: set[int] = set()
        for line in self._host.stdout:
            event = self._decoded(line)
            if event is None:
                continue
            self._heard = True
            if event["kind"] == "rank" and event["state"] in ("finished", "failed", "stopped", "left"):
                ended.add(event["rank"])
            self._deliver(event)
        code = self._host.wait()
        if code:
            self._kill_all()
        for rank in self.spec.local:
            if rank not in ended:
                self._deliver(self._lost(rank, code))

    def _decoded(self, line: bytes) -> Event | None:
        try:
            return {**self._origin(), **json.loads(line)}
        except ValueError:
            log.warning("host of run %s wrote what is no event: %r", self.spec.run, line[:200])
            return None

    def _lost(self, rank: int, code: int) -> Event:
        """The event of a rank whose host ended without saying what became of it."""
        state, detail = "stopped", "stopped before it started"
        if not self._stopped or self._heard:
            state = "failed"
            detail = f"the host process of the ranks ended with status {code}: {self._last_host_line()}"
        return {
            "kind": "rank", **self._origin(), "rank": rank, "state": state, "detail": detail,
            "exit_code": code, "pid": None, "gone": state == "failed" and code != 0, "t": time.time(),
        }  # fmt: skip

    def _origin(self) -> dict[str, Any]:
        spec = self.spec
        started = {"start": spec.start} if spec.start > 1 else {}
        return {"run": spec.run, "generation": spec.generation, **started}

    def _last_host_line(self) -> str:
        with open(os.path.join(self.spec.log_dir, "host.log"), "rb") as host_log:
            lines = host_log.read()[-4096:].split(b"\n")
        return next((line.decode(errors="replace") for line in reversed(lines) if line.strip()), "no output")

    def _deliver(self, event: Event) -> None:
        try:
            self._on_event(event)
        except Exception:
            log.exception("handler of a %s event of run %s failed", event.get("kind"), self.spec.run)
