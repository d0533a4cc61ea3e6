"""The dry run: what a launch would meet now. Asks everything that a launch would, and changes nothing."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import pairwise
from typing import Any

from engine.errors import InputError
from engine.job.all_reduce import crossed as sums_crossed
from engine.job.fields import TrainLink
from engine.job.file_access import FileAccess, files_of
from engine.job.job import TrainJob
from engine.job.locations import device_of
from engine.job.memory import StageMemory, stage_memory
from engine.job.planned import wants_search
from engine.job.swap.planned import planned as planned_swap
from engine.schedule.registry import name_of
from webapp.accounts.models import Team
from webapp.common import broker
from webapp.inventory.models import GpuPool, Node, WanLink
from webapp.inventory.selectors import pools
from webapp.jobs.check import GIB, Check, known_sizes
from webapp.jobs.check import size as _size
from webapp.jobs.gpu_inventory import GpuInventory, GpuOfRank
from webapp.jobs.swap_dry import crossed_links, swap_checks
from webapp.jobs.swap_dry import words as swap_words
from webapp.planning.document import site_job, train_document
from webapp.planning.models import Plan
from webapp.planning.trained import trained_words


def dry_run(plan: Plan, option_index: int, gpu_inventory: GpuInventory | None = None) -> dict[str, Any]:
    """{ok, checks: [{name, ok, text, blocks}]} of one option of `plan`; ok: all checks are.

    gpu_inventory : where it was read already.
    """
    try:
        document = train_document(plan.request, plan.result["options"][option_index], plan.training)
    except InputError as error:
        return answer([Check(name="Document", ok=False, text=_sentence(error), blocks=True)])
    return dry_run_document(document, plan.team, gpu_inventory, planned=plan.request)


def dry_run_document(
    document: dict[str, Any],
    team: Team,
    gpu_inventory: GpuInventory | None = None,
    gpu_of_rank: GpuOfRank = (),
    planned: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The same of a document of `meridian train` that `team` would launch.

    gpu_of_rank : of one that is placed.
    planned : the document of the plan that it came from.
    """
    try:
        job = site_job(document)
        plan = planned_swap(job) if job.swap_strategy else None
        memory = [] if plan else stage_memory(job)
    except InputError as error:
        return answer([Check(name="Document", ok=False, text=_sentence(error), blocks=True)])
    named = pools(team, [dc.name for dc in job.datacenters])
    checks = [
        Check(name="Document", ok=True, text=_told(job)),
        Check(name="Model", ok=True, text=f"A launch trains {trained_words(document, planned)}."),
        Check(name="Data", ok=True, text=f"{data_words(job)} {_weights(job)}"),
        *(
            swap_checks(job, plan, named)
            if plan
            else (memory_check(job, memory, named), *_hosts(job, memory, named))
        ),
        *_files(job, named),
        *_gpus(document, team, gpu_inventory, gpu_of_rank),
        *_links(job, named),
        _broker(),
    ]
    return answer(checks)


def refusal(dry: dict[str, Any]) -> str | None:
    """What stands in the way for good, of an answer of `dry_run`; None where nothing does."""
    blocking = (check for check in dry["checks"] if check["blocks"] and not check["ok"])
    return next((f"{check['name']}: {check['text']}" for check in blocking), None)


def answer(checks: list[Check]) -> dict[str, Any]:
    """`checks` as JSON."""
    return {"ok": all(check.ok for check in checks), "checks": [asdict(check) for check in checks]}


def _told(job: TrainJob) -> str:
    if job.swap_strategy:
        return swap_words(job)
    schedule = (
        f"its schedule is searched for after the launch, for up to {job.pipeline_strategy.time_limit_s:g} s"
        if wants_search(job)
        else "its schedule exists"
    )
    policy = name_of(job.pipeline_strategy.policy)
    return f"{job.cell.stages} stages, {job.cell.pipelines} pipelines, schedule {policy}: {schedule}."


def data_words(job: TrainJob) -> str:
    """The data and the tokenizer that the ranks read, in sentences."""
    kind = "Prepared data" if job.data.prepared else "Text"
    paths = sorted(job.data.path.items()) if isinstance(job.data.path, dict) else [("", job.data.path)]
    where = [f"{path} in {name}" if name else str(path) for name, path in paths if path is not None]
    data = f"{kind}: {', '.join(where)}." if where else "Text: the source of Python's standard library."
    tokens = f" Tokenizer: {job.model.tokenizer}." if job.model.tokenizer else ""
    return f"{data}{tokens}"


def _weights(job: TrainJob) -> str:
    init = getattr(job.model, "init", None)
    return f"Weights begin as in {init}." if init else "Weights begin at random."


def memory_check(job: TrainJob, memory: list[StageMemory], named: Mapping[str, GpuPool]) -> Check:
    """The stage that comes closest to the memory of its GPU; what prefill may hold there counts.

    Where the schedule is still to be found it may hold less than this: too little room then blocks nothing.

    named : the pools of the job's data centres, by name.
    """
    shares = []
    for stage in memory:
        for dc in sorted({dcs[stage.stage] for dcs in job.dcs_of_pipeline}):
            pool = named.get(job.datacenters[dc].name)
            if pool:
                shares.append((stage.total_bytes / pool.gpu.memory_bytes, stage, pool))
    if not shares:
        return Check(name="Memory", ok=False, text="The GPU type of the stages is not known.", blocks=True)
    share, stage, pool = max(shares, key=lambda row: row[0])
    sold, searched = stage.serving_bytes, wants_search(job)
    text = (
        f"Stage {stage.stage + 1} needs {'up to ' if searched else ''}{_size(stage.total_bytes)}"
        f" of {pool.gpu.memory_bytes / GIB:,.0f} GiB ({pool.gpu_type}):"
        f" {_size(stage.state_bytes)} weights, gradients and optimizer,"
        f" {_size(stage.activation_bytes)} activations of {stage.in_flight}"
        f" {'microbatch' if stage.in_flight == 1 else 'microbatches'}"
        f"{f', {_size(sold)} weights and KV caches of prefill' if sold else ''}."
    )
    return Check(name="Memory", ok=share <= 1, text=text, blocks=not searched)


def _hosts(job: TrainJob, memory: list[StageMemory], named: Mapping[str, GpuPool]) -> Iterator[Check]:
    """Where nodes have no GPUs of their own, ranks share the memory of their machines: one check per data
    centre whose machines cannot hold them, by what the agents have seen."""
    if job.device.kind == "cuda":
        yield from _smaller_gpus(job, memory, named)
        return
    needed: dict[str, list[int]] = defaultdict(list)
    for dcs in job.dcs_of_pipeline:
        for stage, dc in enumerate(dcs):
            needed[job.datacenters[dc].name] += [memory[stage].total_bytes] * job.cell.tp
    sizes: dict[int, list[int | None]] = defaultdict(list)
    nodes = Node.objects.filter(pool__in=named.values(), device=job.device.kind).order_by()
    for pool, size in nodes.values_list("pool", "seen_hardware__memory_bytes"):
        sizes[pool].append(size)
    for name, stages in needed.items():
        machines = known_sizes(sizes[named[name].pk] if name in named else [])
        if not machines:
            continue  # not known, or said by the check of its GPUs
        text = (
            f"{len(stages)} ranks need {_size(sum(stages))}, the largest {_size(max(stages))}. The machines"
            f" of its nodes have {_size(sum(machines))}, the largest {_size(max(machines))}."
        )
        if sum(stages) > sum(machines) or max(stages) > max(machines):
            yield Check(name=f"Memory in {name}", ok=False, text=text, blocks=not wants_search(job))


def _smaller_gpus(job: TrainJob, memory: list[StageMemory], named: Mapping[str, GpuPool]) -> Iterator[Check]:
    """GPUs that have less memory than a stage may need which comes to them, by what the agents have seen."""
    most: dict[str, int] = defaultdict(int)
    for dcs in job.dcs_of_pipeline:
        for stage, dc in enumerate(dcs):
            name = job.datacenters[dc].name
            most[name] = max(most[name], memory[stage].total_bytes)
    nodes = Node.objects.filter(pool__in=named.values(), device=job.device.kind).order_by("name")
    seen = list(nodes.values_list("name", "pool", "seen_hardware__gpus"))
    for name, needed in most.items():
        here = [(node, gpus or []) for node, pool, gpus in seen if name in named and pool == named[name].pk]
        small = {node: size for node, gpus in here if (size := _least(gpus)) is not None and size < needed}
        if small:
            node, size = min(small.items(), key=lambda row: row[1])
            text = f"A stage needs up to {_size(needed)}, but a GPU of {node} has {_size(size)}."
            blocks = len(small) == len(here) and not wants_search(job)
            yield Check(name=f"Memory in {name}", ok=False, text=text, blocks=blocks)


def _least(gpus: list[dict[str, Any]]) -> int | None:
    """The memory of the smallest of a node's GPUs, as its agent has said; None where it has not."""
    return min((gpu["memory_bytes"] for gpu in gpus if "memory_bytes" in gpu), default=None)


def _files(job: TrainJob, named: Mapping[str, GpuPool]) -> Iterator[Check]:
    """Paths and URLs of the job, by what the agents have said that they open to runs.

    An agent that refuses one is named; where all nodes of a data centre do, a launch would fail. What agents
    have not said, and paths that mean something on the node alone (``~``, relative ones), they judge later.
    """
    paths = [(field, value) for field, value in files_of(job) if value.startswith("/") or "://" in value]
    if not paths:
        return
    nodes = Node.objects.filter(pool__in=named.values(), device=job.device.kind).exclude(acl_sha256="")
    reporting = nodes.filter(seen_hardware__has_key="files").order_by("name")
    reported = list(reporting.values_list("name", "pool", "seen_hardware__files"))
    for name, pool in named.items():
        here = [(node, files) for node, of, files in reported if of == pool.pk]
        refusals = {node: why for node, files in here if (why := _refused(paths, files))}
        if refusals:
            text = f"{', '.join(refusals)}: {next(iter(refusals.values()))}."
            yield Check(name=f"Files in {name}", ok=False, text=text, blocks=len(refusals) == len(here))


def _refused(paths: list[tuple[str, str]], files: Mapping[str, list[str]]) -> str:
    """What an agent that opens `files` refuses of `asked`, as a sentence; empty where nothing."""
    access = FileAccess(roots=tuple(files["roots"]), schemes=tuple(files["schemes"]))
    for field, value in paths:
        try:
            access.require(field, value)
        except InputError as error:
            return str(error)
    return ""


def _gpus(
    document: dict[str, Any], team: Team, gpu_inventory: GpuInventory | None, gpu_of_rank: GpuOfRank
) -> Iterator[Check]:
    """One check per data centre: the device is offered there, and GPUs of it are idle."""
    gpu_inventory = gpu_inventory or GpuInventory([(team.pk, document)])
    for name, supply in gpu_inventory.supply(team.pk, document).items():
        here = f"{supply.idle} of {supply.total} {device_of(document)} GPUs are idle, {supply.needed} needed."
        lack = supply.shortage(name)
        text = f"{here} {lack.text}." if lack else here
        yield Check(
            name=f"GPUs in {name}", ok=lack is None, text=text, blocks=lack is not None and lack.for_good
        )
    if gpu_of_rank:
        lack = gpu_inventory.shortage_of(team.pk, document, gpu_of_rank)
        text = f"{lack.text}." if lack else f"The {len(gpu_of_rank)} GPUs of the placement are idle."
        yield Check(name="Placement", ok=lack is None, text=text)


def _links(job: TrainJob, named: Mapping[str, GpuPool]) -> Iterator[Check]:
    """One check per link that pipelines or rings of replicas cross: it is in the inventory as counted on."""
    crossed = [pair for dcs in job.dcs_of_pipeline for pair in pairwise(dcs)]
    for stage in range(job.cell.stages):
        crossed += crossed_links(job) if job.swap_strategy else sums_crossed(job, stage)
    first = {frozenset(pair): pair for pair in reversed(crossed) if pair[0] != pair[1]}
    if not first:
        return
    there = [pool.dc_id for pool in named.values()]
    rows = {frozenset((row.a_id, row.b_id)): row for row in WanLink.objects.filter(a__in=there, b__in=there)}
    for ends in reversed(list(first.values())):
        a, b = (job.datacenters[dc].name for dc in ends)
        assumed = job.link_between(*ends)
        sites = frozenset(named[name].dc_id for name in (a, b) if name in named)
        if len(sites) < 2 or assumed is None:
            continue  # a pool is gone, which is said above; or two pools of one data centre
        yield _link(f"Link {a} – {b}", rows.get(sites), assumed)


def _link(name: str, row: WanLink | None, assumed: TrainLink) -> Check:
    if row is None:
        return Check(name=name, ok=False, text="This link is no longer in the inventory.", blocks=True)
    figures = f"{row.latency_ms:g} ms one way, {row.bandwidth_gbps:g} Gbit/s per node pair"
    if (row.latency_ms, row.bandwidth_gbps) == (assumed.latency_ms, assumed.bandwidth_gbps):
        return Check(name=name, ok=True, text=f"{figures}.")
    old = f"{assumed.latency_ms:g} ms and {assumed.bandwidth_gbps:g} Gbit/s"
    return Check(name=name, ok=False, text=f"{figures}, but the plan assumes {old}.")


def _broker() -> Check:
    health = broker.health()
    return Check(name="Broker", ok=health.ok, text=health.text or "The broker answers: nodes can be started.")


def _sentence(error: InputError) -> str:
    return f"{error}."
