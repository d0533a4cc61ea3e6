"""The bubbles that runs leave in a data centre, as their schedules foretell them: what prefill can run in."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, OuterRef, Q
from django.utils import timezone

from engine.job.codes import OPS, PREFILL
from engine.job.locations import dcs_of_pipelines
from engine.job.prefill.settings import PrefillSettings
from engine.prefill.bubbles import Interval, TrainingPattern, joined
from engine.prefill.in_run import with_waking
from engine.prefill.index import Fleet
from engine.prefill.latency import Hop, LatencyModel
from engine.prefill.placement import Cache, Settings
from webapp.inventory.models import DataCenter, GpuPool
from webapp.jobs.models import HOLDING, RankState, Run, Status
from webapp.live.models import PrefillCoordinator
from webapp.prefill.catalogue import cache_of, cache_served, hop_between_stages, latencies
from webapp.prefill.served import settings_in

# What requests meet where a run's job says nothing of it: guard before training ops, those that wait, least
# tokens of a chunk.
SETTINGS = Settings(guard_ms=2.0, queue=64, chunk_tokens=128)
MOST_RUNS = 50  # of those that hold GPUs, and of those queued, the ones looked at
GPU_CODES = frozenset(OPS.values()) - {PREFILL}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cell:
    """The GPUs of one kind that a run has, or would have, in one data centre.

    serves : the run serves the model, or will when it trains; else it serves none, and its GPUs could.
    latency, hop : of a prompt, and between the stages of its pipeline, as the run's coordinators count on
        them.
    planned : it is queued and holds none yet.  until : when the run should end by its predicted iterations;
    None where it has not begun.
    """

    run: Run
    dc: DataCenter
    gpu_type: str
    fleet: Fleet
    latency: LatencyModel
    hop: Hop
    cache: Cache
    settings: Settings
    serves: bool
    planned: bool
    until: datetime | None

    @property
    def idle_share(self) -> float:
        """Of its GPU time, what training leaves idle."""
        return 1 - self.fleet.pattern.utilization

    @property
    def gpus(self) -> int:
        return self.fleet.gpus

    @property
    def period_ms(self) -> float:
        return self.fleet.pattern.period_ms

    @property
    def key(self) -> tuple[int, int, str]:
        return self.run.pk, self.dc.pk, self.gpu_type


def cells(model: str, datacenters: Sequence[DataCenter], *, planned: bool = True) -> list[Cell]:
    """The cells in `datacenters` that serve `model`, and those that serve none and on whose GPUs it was
    measured; running ones first. The bubbles of a run that serves another model are that one's."""
    rows: list[Cell] = []
    by_pk = {dc.pk: dc for dc in datacenters}
    teams = {dc.team_id for dc in datacenters}
    has_ranks = Exists(RankState.objects.filter(run=OuterRef("pk"), dc__in=by_pk))
    runs_holding = _runs(Q(status__in=HOLDING, job__team__in=teams), has_ranks)
    places, opened = _places(runs_holding), _open_models(runs_holding)
    for run in runs_holding:
        rows += _cells(run, model, places.get(run.pk, {}), by_pk, opened[run.pk], planned=False)
    if planned:
        names = [{"datacenters": [{"name": name}]} for name in _document_names(datacenters)]
        serves_model = Q(pk__in=[])
        for name in names:
            serves_model |= Q(job__document__contains=name)
        pools = _pools(datacenters)
        for run in _runs(Q(status=Status.QUEUED, job__team__in=teams), serves_model):
            rows += _cells(run, model, _asked_places(run, pools), by_pk, set(), planned=True)
    return rows


def _open_models(runs: Iterable[Run]) -> dict[int, set[str]]:
    """{run: models that its prefill coordinators take prompts for now}."""
    by_run: dict[int, set[str]] = defaultdict(set)
    rows = PrefillCoordinator.objects.usable().filter(run__in=[run.pk for run in runs])
    for run, model in rows.values_list("run", "model"):
        by_run[run].add(model)
    return by_run


def _runs(*where: Any) -> list[Run]:
    rows = Run.objects.filter(*where).select_related("job").defer("result", "job__plan_copy")
    return list(rows.order_by("created_at", "pk")[:MOST_RUNS])


def _places(runs: Iterable[Run]) -> dict[int, dict[int, tuple[int, str]]]:
    """{run: {stage: (data centre, GPU type)}} as its ranks were placed."""
    ranks = RankState.objects.filter(run__in=[run.pk for run in runs])
    positions: dict[int, dict[int, set[tuple[int, str]]]] = defaultdict(lambda: defaultdict(set))
    for run, stage, dc, gpu_type in ranks.values_list(
        "run", "stage", "dc", "node__pool__gpu_type"
    ).distinct():
        positions[run][stage].add((dc, gpu_type))
    # A stage whose replicas lie in several data centres is a cell of none.
    return {
        run: {stage: min(places) for stage, places in stages.items() if len(places) == 1}
        for run, stages in positions.items()
    }


def _pools(datacenters: Sequence[DataCenter]) -> dict[str, tuple[int, str]]:
    """{name in documents: (data centre, GPU type)}; the bare name means the first pool."""
    pools: dict[str, tuple[int, str]] = {}
    for pool in GpuPool.objects.filter(dc__in=datacenters).select_related("dc").order_by("pk"):
        pools.setdefault(pool.dc.name, (pool.dc_id, pool.gpu_type))
        pools[f"{pool.dc.name}:{pool.gpu_type}"] = (pool.dc_id, pool.gpu_type)
    return pools


def _document_names(datacenters: Sequence[DataCenter]) -> list[str]:
    return list(_pools(datacenters))


def _asked_places(run: Run, pools: dict[str, tuple[int, str]]) -> dict[int, tuple[int, str]]:
    document = run.job.document
    names = [dc["name"] for dc in document.get("datacenters", ())]
    ways = dcs_of_pipelines(document)
    alike = {stage: dcs[0] for stage, dcs in enumerate(zip(*ways, strict=True)) if len(set(dcs)) == 1}
    return {stage: pools[names[dc]] for stage, dc in alike.items() if dc < len(names) and names[dc] in pools}


def _cells(
    run: Run,
    model: str,
    places: dict[int, tuple[int, str]],
    by_pk: dict[int, DataCenter],
    opened: set[str],
    *,
    planned: bool,
) -> Iterator[Cell]:
    if run.job.swaps:  # its GPUs load weights in their idle time
        return
    prefill = settings_in(run.job.document.get("prefill"))
    serves = model in opened or (prefill is not None and prefill.model == model)
    if not serves and (opened or prefill is not None):
        return
    period_ms = float(run.predicted.get("iteration_ms") or 0)
    if period_ms <= 0 or not run.predicted.get("spans"):
        return
    stages = int(run.job.document["cell"]["stages"])
    for place in sorted(set(places.values())):
        dc = by_pk.get(place[0])
        times = None if dc is None else _times(prefill, model, place[1], dc)
        if dc is None or times is None:
            continue
        here = sorted(stage for stage, where in places.items() if where == place)
        pattern = pattern_of(run.predicted["spans"], stages, here, period_ms)
        if pattern is None:
            continue
        time_left = timedelta(milliseconds=period_ms * max(0, run.steps - run.done))
        fleet = _fleet(pattern, run.job.document)
        yield Cell(
            run=run,
            dc=dc,
            gpu_type=place[1],
            fleet=fleet,
            latency=with_waking(times[0], fleet.pp_degree),
            hop=hop_between_stages(model, prefill),
            cache=times[1],
            settings=_settings(run.document),
            serves=serves,
            planned=planned,
            until=None if planned else timezone.now() + time_left,
        )


def _times(
    prefill: PrefillSettings | None, model: str, gpu_type: str, dc: DataCenter
) -> tuple[LatencyModel, Cache] | None:
    """How long a prompt of `model` takes on a GPU of a run, and its KV cache; None where nobody said so.

    The run's own prefill coordinators count on what its job says of its model; so does this.
    """
    if prefill is not None and prefill.model == model:
        return prefill.latency.model, cache_served(prefill, dc.intra_gbps)
    latency = latencies().get((model, gpu_type))
    return None if latency is None else (latency, cache_of(model, dc.intra_gbps))


def _fleet(pattern: TrainingPattern, document: dict[str, Any]) -> Fleet:
    """The GPUs of `pattern`, as many to a prompt as the run's own prefill has."""
    prefill = settings_in(document.get("prefill"))
    degree = 1 if prefill is None else prefill.pp_degree
    cells = document["cell"].get("cells", 1) if degree > 1 else 1
    return Fleet(pattern=pattern, phase_ms=(0.0,), pp_degree=degree, cells_of_pattern=cells)


def _settings(document: dict[str, Any]) -> Settings:
    """How a run's prefill coordinators place requests, as its job says."""
    prefill = settings_in(document.get("prefill"))
    return (
        SETTINGS
        if prefill is None
        else Settings(
            guard_ms=prefill.guard_ms,
            queue=prefill.queue,
            chunk_tokens=prefill.chunk_tokens,
            reserve_ms=prefill.reserve_ms,
        )
    )


def pattern_of(
    lanes: Sequence[Sequence[Any]], stages: int, here: Sequence[int], period_ms: float
) -> TrainingPattern | None:
    """What the GPUs of the stages `here` do in one iteration, by the predicted span codes of every rank."""
    busy: dict[int, tuple[Interval, ...]] = {}
    for rank, *codes in lanes:
        spans = sorted(
            (float(code[2]), min(float(code[3]), period_ms)) for code in codes if code[0] in GPU_CODES
        )
        busy[rank] = joined((max(0.0, start), end) for start, end in spans)
    pipelines = (max(busy) + 1) // stages if busy else 0
    if not pipelines or not here:
        return None
    rows = tuple(tuple(busy.get(p * stages + s, ()) for s in here) for p in range(pipelines))
    return TrainingPattern(period_ms=period_ms, busy=rows, dc_of_stage=(0,) * len(here))
