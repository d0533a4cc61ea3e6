"""The order to a machine to run ranks: all ranks of the run, the local ones, and where they meet."""

import json
import secrets
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from engine.documents import read_json
from engine.errors import InputError
from engine.inputs import parse
from engine.job.devices import CUDA
from engine.job.domains import Position, domains_in, pack
from engine.job.job import TrainJob
from engine.job.reserve import dcs_of_reserve

LOCALHOST = "127.0.0.1"
EXIT_FINAL = 78  # of a rank that would end the same way again: bad input, a loss that went wrong (EX_CONFIG)
EXIT_PEER_LOST = 75  # of a rank that is not the cause: it lost another one (EX_TEMPFAIL)
NOWHERE = -1  # pipeline and stage of a GPU in reserve


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAssignment:
    """The position of one rank; rank = (shard · pipelines + pipeline) · stages + stage.

    Ranks of GPUs in reserve follow those of the launch; their pipeline and stage are NOWHERE.
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
    """Slow ops and links that the schedule does not know: for tests, and for what-if on a real run.

    op_factor : (stage, kind of op as its letter, factor) by which an emulated op takes longer.
    gpu_factor : (pipeline, stage, factor) by which every op of one emulated GPU does.
    link_factor : (from stage, factor) by which the WAN hop after that stage is slower, both ways.
    between : (data centre, data centre, factor, factor) by which the emulated link of the two is slower and
        its latency longer, both ways, wherever pipelines cross it.
    since : iteration, counted from 0, with which all of that begins.
    """

    op_factor: tuple[tuple[int, str, float], ...] = ()
    gpu_factor: tuple[tuple[int, int, float], ...] = ()
    link_factor: tuple[tuple[int, float], ...] = ()
    between: tuple[tuple[int, int, float, float], ...] = ()
    since: int = 0

    @property
    def slows(self) -> bool:
        """Whether anything is disturbed."""
        return bool(self.op_factor or self.gpu_factor or self.link_factor or self.between)

    def of_op(self, pipeline: int, stage: int, kind: str) -> float:
        """Factor on the duration of one kind of op on a GPU."""
        of_stage = next((f for s, k, f in self.op_factor if (s, k) == (stage, kind)), 1.0)
        return of_stage * next((f for p, s, f in self.gpu_factor if (p, s) == (pipeline, stage)), 1.0)

    def of_hop(self, stage: int) -> float:
        """Factor on the transfer time of the hop stage → stage + 1."""
        return next((f for s, f in self.link_factor if s == stage), 1.0)

    def of_link(self, a: int, b: int) -> tuple[float, float]:
        """Factors on the transfer time and on the latency of the link between two data centres."""
        rows = ((slower, longer) for c, d, slower, longer in self.between if {c, d} == {a, b})
        return next(rows, (1.0, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """One run on one machine: the whole run's `ranks`, and those that are `local` here.

    reserve : GPUs that the run holds and no rank computes on yet; `local` names those here, too.
    rendezvous_port 0 lets the machine that hosts the store choose one (single-machine runs only).
    ports : first and last of the ports on which the local ranks may listen to others; None: any free one.
    attempt : of the run's ranks, counted from 1; they begin another one after a failure (recovery).
    start : of this generation on this machine, counted from 1; a lost machine is started again (recovery).
    times : what ops and transfers take by what an earlier attempt measured (adapt); empty: as the job says.
    conditions : of all GPUs and links, by what earlier attempts measured (engine.job.adapt.layouts).
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
    attempt: int = 1
    start: int = 1
    times: tuple[tuple[Any, ...], ...] = ()
    conditions: tuple[tuple[Any, ...], ...] = ()
    reserve: tuple[RankAssignment, ...] = ()

    def to_json(self) -> str:
        """The spec as one line of JSON."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        values["job"] = self.job.to_document()
        for name in ("ranks", "reserve"):
            values[name] = [asdict(assignment) for assignment in values[name]]
        values["disturbance"] = asdict(self.disturbance)
        return json.dumps(values)

    @classmethod
    def from_json(cls, text: str) -> "LaunchSpec":
        """The inverse of :meth:`to_json`. Raises InputError where the text is not a launch spec."""
        try:
            values = read_json(text)
            job = parse(TrainJob, values.pop("job"), at="job")
            ranks, reserve = (
                tuple(RankAssignment(**assignment) for assignment in values.pop(name, ()))
                for name in ("ranks", "reserve")
            )
            disturbance = _disturbance(values.pop("disturbance", {}))
            ports = values.pop("ports", None)
            times, known = (tuple(map(tuple, values.pop(name, ()))) for name in ("times", "conditions"))
            return cls(
                **{**values, "local": tuple(values["local"])},
                job=job,
                ranks=ranks,
                disturbance=disturbance,
                ports=None if ports is None else _port_range(ports),
                times=times,
                conditions=known,
                reserve=reserve,
            )
        except InputError:
            raise
        except (KeyError, TypeError, AttributeError, OverflowError, ValueError) as error:
            raise InputError(
                "spec", str(error), "must be a launch spec as LaunchSpec.to_json writes it"
            ) from None

    @property
    def first_rank(self) -> int:
        """The rank that hosts the rendezvous store and reports the result."""
        return min(assignment.rank for assignment in self.ranks)

    @property
    def local_ranks(self) -> tuple[RankAssignment, ...]:
        """Those of `ranks` that are here."""
        return tuple(assignment for assignment in self.ranks if assignment.rank in self.local)

    @property
    def gpus(self) -> tuple[RankAssignment, ...]:
        """All GPUs that the run holds."""
        return (*self.ranks, *self.reserve)


def gpu_in_reserve(rank: int, dc: int, dc_name: str, *, node: str, host: str, gpu: int) -> RankAssignment:
    """A GPU that a run holds and does not use yet."""
    return RankAssignment(
        rank=rank, pipeline=NOWHERE, stage=NOWHERE, dc=dc, dc_name=dc_name, node=node, host=host, gpu=gpu
    )


def _disturbance(values: dict[str, Any]) -> Disturbance:
    rows = {name: tuple(map(tuple, points)) for name, points in values.items() if name != "since"}
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

    Where a data centre has HB domains, each is a node, and replicas that sum together are on one if they fit.
    On CUDA a rank takes the GPU with its own number, or under `devices` with that of its device; the ranks of
    a stage (tensor parallelism) take GPUs side by side. With `ranks_per_gpu` n, n consecutive numbers are one
    GPU.
    """
    ranks = []
    used = dict.fromkeys(range(len(job.datacenters)), 0)
    node_of = {dc: _hb_nodes(job, dc) for dc, site in enumerate(job.datacenters) if site.hb_domain}
    places = job.cell.stages * len(job.dcs_of_pipeline)
    for place in range(places):
        pipeline, stage = divmod(place, job.cell.stages)
        dc = job.dcs_of_pipeline[pipeline][stage]
        name = job.datacenters[dc].name
        for shard in range(job.cell.tp):
            ranks.append(
                RankAssignment(
                    rank=shard * places + place,
                    pipeline=pipeline,
                    stage=stage,
                    dc=dc,
                    dc_name=name,
                    node=f"{name}-{node_of[dc][pipeline, stage] if dc in node_of else used[dc]}",
                    host=LOCALHOST,
                    gpu=_gpu_of(job, place, used[dc]) * job.cell.tp + shard,
                    shard=shard,
                )
            )
        used[dc] += 1
    ranks.sort(key=lambda assignment: assignment.rank)
    reserve = []
    for rank, dc in enumerate(dcs_of_reserve(job), start=places):  # such a job has no tp
        name = job.datacenters[dc].name
        gpu = _gpu_of(job, rank, used[dc])
        reserve.append(gpu_in_reserve(rank, dc, name, node=f"{name}-{used[dc]}", host=LOCALHOST, gpu=gpu))
        used[dc] += 1
    return LaunchSpec(
        run=run,
        generation=1,
        job=job,
        ranks=tuple(ranks),
        reserve=tuple(reserve),
        local=tuple(range(len(ranks) + len(reserve))),
        rendezvous_host=LOCALHOST,
        rendezvous_port=0,
        secret=secrets.token_hex(16),
        log_dir=log_dir,
        disturbance=disturbance or Disturbance(),
    )


def _hb_nodes(job: TrainJob, dc: int) -> dict[Position, int]:
    """The node of each stage of each pipeline in a data centre whose HB domains are nodes, by its number."""
    site, tp = job.datacenters[dc], job.cell.tp
    assert site.hb_domain is not None
    nodes, rest = divmod(site.gpus, site.hb_domain)
    room = [*[site.hb_domain // tp] * nodes, rest // tp]
    domains = domains_in(job, dc)
    missing = sum(map(len, domains)) - sum(room)  # where tp leaves GPUs of a node over
    return pack(domains, dict(enumerate([*room, max(0, missing)])))


def _gpu_of(job: TrainJob, place: int, of_dc: int) -> int:
    """The GPU of a stage of a pipeline on this machine: real ones are shared by the DCs that it plays."""
    if job.device.kind != CUDA:
        return of_dc
    if job.cell.devices is None:
        return place // job.device.ranks_per_gpu
    placed = [device for devices in job.cell.devices.pipelines for device in devices]
    joining = [joins.device for joins in job.swap_strategy.joins] if job.swap_strategy else []
    return int([*placed, *joining][place]) // job.device.ranks_per_gpu
