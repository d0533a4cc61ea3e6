"""The dry run: what a launch would meet now. Asks everything that a launch would, and changes nothing."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from engine.errors import InputError
from engine.inputs import parse
from engine.runtime.job import TrainJob, TrainLink
from webapp import broker
from webapp.accounts.models import Team
from webapp.inventory.models import WanLink
from webapp.inventory.selectors import pools
from webapp.jobs.document import train_document
from webapp.jobs.stock import Stock
from webapp.planning.memory import StageMemory, stage_memory
from webapp.planning.models import Plan

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question with its answer. `blocks`: a launch is refused or fails; else, where not ok, it waits."""

    name: str
    ok: bool
    text: str
    blocks: bool = False


def dry_run(plan: Plan, option_index: int, stock: Stock | None = None) -> dict[str, Any]:
    """{ok, checks: [{name, ok, text, blocks}]} of one option of `plan`; ok: all checks are.

    stock : where it was read already.
    """
    try:
        if not plan.training:
            raise InputError(
                "training", None, "the plan is from a preset: explicit times can be launched only"
            )
        document = train_document(plan.request, plan.result["options"][option_index], plan.training)
    except InputError as error:
        return answer([Check(name="Document", ok=False, text=_sentence(error), blocks=True)])
    return dry_run_document(document, plan.team, stock)


def dry_run_document(document: dict[str, Any], team: Team, stock: Stock | None = None) -> dict[str, Any]:
    """The same of a document of `meridian train` that `team` would launch."""
    try:
        job = parse(TrainJob, document)
        memory = stage_memory(job)
    except InputError as error:
        return answer([Check(name="Document", ok=False, text=_sentence(error), blocks=True)])
    told = f"{job.stages} stages, {job.pipelines} pipelines, {job.policy}: a schedule exists."
    checks = [Check(name="Document", ok=True, text=told)]
    checks += [_memory(job, memory, team), *_gpus(document, team, stock), *_links(job, team), _broker()]
    return answer(checks)


def answer(checks: list[Check]) -> dict[str, Any]:
    """`checks` as JSON."""
    return {"ok": all(check.ok for check in checks), "checks": [asdict(check) for check in checks]}


def _memory(job: TrainJob, memory: list[StageMemory], team: Team) -> Check:
    """The stage that comes closest to the memory of its GPU."""
    named = pools(team, [dc.name for dc in job.datacenters])
    shares = []
    for stage in memory:
        pool = named.get(job.datacenters[job.dcs[stage.stage]].name)
        if pool:
            shares.append((stage.total_bytes / pool.gpu.memory_bytes, stage, pool))
    if not shares:
        return Check(name="Memory", ok=False, text="The GPU type of no stage is known.", blocks=True)
    share, stage, pool = max(shares, key=lambda row: row[0])
    text = (
        f"Stage {stage.stage + 1} needs {_size(stage.total_bytes)} of {pool.gpu.memory_bytes / GIB:,.0f} GiB"
        f" ({pool.gpu_type}): {_size(stage.state_bytes)} weights, gradients and optimizer,"
        f" {_size(stage.activation_bytes)} activations of {stage.in_flight}"
        f" {'microbatch' if stage.in_flight == 1 else 'microbatches'}."
    )
    return Check(name="Memory", ok=share <= 1, text=text, blocks=True)


def _gpus(document: dict[str, Any], team: Team, stock: Stock | None) -> Iterator[Check]:
    """One check per data centre: the device is offered there, and GPUs of it are idle."""
    stock = stock or Stock([(team.pk, document)])
    for name, supply in stock.supply(team.pk, document).items():
        here = f"{supply.idle} of {supply.total} {document['device']} GPUs are idle, {supply.needed} needed."
        lack = supply.shortage(name)
        text = f"{here} {lack.text}." if lack else here
        yield Check(
            name=f"GPUs in {name}", ok=lack is None, text=text, blocks=lack is not None and lack.for_good
        )


def _links(job: TrainJob, team: Team) -> Iterator[Check]:
    """One check per WAN hop: the link stands in the inventory as the job counts on it."""
    named = pools(team, [dc.name for dc in job.datacenters])
    for stage in sorted(job.hops):
        a, b = (job.datacenters[job.dcs[s]].name for s in (stage, stage + 1))
        assumed = job.link_between(job.dcs[stage], job.dcs[stage + 1])
        ends = [named[name].dc_id for name in (a, b) if name in named]
        if len(set(ends)) < 2 or assumed is None:
            continue  # a pool is gone, which is said above; or two pools of one data centre
        known = WanLink.objects.filter(a__in=ends, b__in=ends).first()
        yield _link(f"Link {a} – {b}", known, assumed)


def _link(name: str, known: WanLink | None, assumed: TrainLink) -> Check:
    if known is None:
        return Check(name=name, ok=False, text="The inventory holds no such link any more.")
    figures = f"{known.latency_ms:g} ms one way, {known.bandwidth_gbps:g} Gbit/s per node pair"
    if (known.latency_ms, known.bandwidth_gbps) == (assumed.latency_ms, assumed.bandwidth_gbps):
        return Check(name=name, ok=True, text=f"{figures}.")
    old = f"{assumed.latency_ms:g} ms and {assumed.bandwidth_gbps:g} Gbit/s"
    return Check(name=name, ok=False, text=f"{figures}, but the plan counts on {old}.")


def _broker() -> Check:
    health = broker.health()
    return Check(name="Broker", ok=health.ok, text=health.text or "Answers: nodes can be told to start.")


def _size(count: float) -> str:
    return f"{count / GIB:,.2f} GiB" if count >= GIB / 10 else f"{count / 2**20:,.1f} MiB"


def _sentence(error: InputError) -> str:
    return f"{error}."
