"""Rules between the fields of a training job. Each raises InputError with the field that breaks it."""

from itertools import pairwise

from engine.errors import InputError
from engine.inputs import nearest
from engine.job import swap_checks
from engine.job.devices import CUDA, Devices
from engine.job.fields import MOST_RANKS, JobFields, as_list

LONGEST_MS = 3.6e6
SHORTEST_EMULATED_MS = 5.0  # below it the overshoot of sleeping (0.1–0.4 ms) is no longer small
_NOT_WITH_TP = {
    "devices": "a placement gives each stage of a pipeline one device",
    "recovery": "ranks keep and transfer the state of whole stages",
    "prefill": "a prefill worker uses one GPU, but the ranks of a stage wait for each other in every op",
    "adapt": "the ranks of a stage would have to change the schedule together",
}


def check(job: JobFields) -> None:
    """All rules except those of the job's scenario."""
    _check_resume(job)
    _check_learning_rate(job)
    _check_datacenters(job)
    _check_strategy(job)
    _check_tp(job)
    _check_stages(job)
    _check_data(job)
    _check_links(job)
    _check_stage_times(job)
    _check_times(job)
    _check_prefill(job)
    _check_adapt(job)
    _check_device(job)


def _check_resume(job: JobFields) -> None:
    if job.resume is True and job.checkpoint is None:
        raise InputError("resume", True, "needs checkpoint.dir to look in; or give the path of a checkpoint")


def _check_learning_rate(job: JobFields) -> None:
    warmup = job.lr_schedule.warmup_steps
    if warmup > job.steps:
        allowed = f"at most steps = {job.steps}: the learning rate would never be reached"
        raise InputError("lr_schedule.warmup_steps", warmup, allowed)


def _check_strategy(job: JobFields) -> None:
    if job.swaps:
        swap_checks.check(job)
    elif job.swap is not None:
        raise InputError("swap", job.swap.model_dump(exclude_none=True), "applies only to strategy swap")


def _check_datacenters(job: JobFields) -> None:
    names = [dc.name for dc in job.datacenters]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InputError(f"datacenters[{index}].name", name, "each data centre needs its own name")


def _check_stages(job: JobFields) -> None:
    if job.dc_of_stage and len(job.dc_of_stage) != job.stages:
        allowed = f"one DC index per stage: {job.stages} expected, {len(job.dc_of_stage)} given"
        raise InputError("dc_of_stage", job.dc_of_stage, allowed)
    for stage, dc in enumerate(job.dc_of_stage):
        if dc >= len(job.datacenters):
            raise InputError(
                f"dc_of_stage[{stage}]", dc, f"an index into datacenters, 0 to {len(job.datacenters) - 1}"
            )
    places = job.stages * (job.chunks or 1)
    if job.model.layers < places:
        chunks = f" × {job.chunks} chunks" if places > job.stages else ""
        allowed = f"at least one layer per stage and chunk: {job.stages} stages{chunks}"
        raise InputError("model.layers", job.model.layers, allowed)
    if job.world_size > MOST_RANKS:
        raise InputError("pipelines", job.pipelines, f"gives {job.world_size} ranks; at most {MOST_RANKS}")
    _check_cells(job)
    if job.devices is not None:
        _check_devices(job, job.devices)
        return
    for index, site in enumerate(job.datacenters):
        hosted = job.dcs.count(index)
        needed = hosted * job.pipelines * job.tp
        if needed > site.gpus:
            tp = f" × tp = {job.tp}" if job.tp > 1 else ""
            allowed = f"{site.name} needs {needed} ({hosted} stages × {job.pipelines} pipelines{tp})"
            raise InputError(f"datacenters[{index}].gpus", site.gpus, allowed)


def _check_tp(job: JobFields) -> None:
    if job.tp == 1:
        return
    for name, reason in _NOT_WITH_TP.items():
        given = getattr(job, name)
        if given is not None:
            allowed = f"not available with tp = {job.tp}: {reason}"
            raise InputError(name, given.model_dump(exclude_none=True), allowed)
    if job.device == "emulated":
        allowed = (
            "1 on device emulated, where the profile sets the times of ops, whatever the number of ranks"
        )
        raise InputError("tp", job.tp, allowed)
    model = job.model
    counts = {"heads": model.heads, "kv_heads": model.key_value_heads, "ffn": model.ffn_width}
    for name, count in counts.items():
        if count % job.tp:
            raise InputError("tp", job.tp, f"must divide model.{name} = {count}")
    rows = -(-model.vocabulary // job.tp)  # of the embedding, of each rank but the last
    if (job.tp - 1) * rows >= model.vocabulary:
        allowed = (
            f"too many ranks for model.vocabulary = {model.vocabulary}: the last would have no row of it"
        )
        raise InputError("tp", job.tp, allowed)


def _check_cells(job: JobFields) -> None:
    if job.pipelines % job.cells:
        raise InputError("cells", job.cells, f"a number that divides the {job.pipelines} pipelines")
    if job.cells > 1 and job.is_mixed:
        allowed = "1: devices place pipelines in different data centres, so cells differ"
        raise InputError("cells", job.cells, allowed)


def _check_data(job: JobFields) -> None:
    if not isinstance(job.data, dict):
        return
    names = [dc.name for dc in job.datacenters]
    for name in job.data:
        if name not in names:
            raise InputError(f"data.{name}", job.data[name], "no such data centre, " + nearest(name, names))
    for name in sorted({names[dc] for dcs in job.dcs_of_pipeline for dc in dcs}):
        if name not in job.data:
            raise InputError(f"data.{name}", None, "every data centre with stages needs a file or folder")


def _check_devices(job: JobFields, devices: Devices) -> None:
    if job.dc_of_stage:
        raise InputError("dc_of_stage", job.dc_of_stage, "must be left out: devices already says it")
    devices.check(pipelines=job.pipelines, stages=job.stages, gpus=[dc.gpus for dc in job.datacenters])
    if job.is_mixed and job.sharing == "temporal":
        allowed = "spatial: pipelines run through different data centres and share no links"
        raise InputError("sharing", job.sharing, allowed)


def _check_links(job: JobFields) -> None:
    names = [dc.name for dc in job.datacenters]
    seen: list[set[str]] = []
    for index, link in enumerate(job.links):
        for end, name in enumerate(link.between):
            if name not in names:
                raise InputError(
                    f"links[{index}].between[{end}]", name, "no such data centre, " + nearest(name, names)
                )
        if link.between[0] == link.between[1]:
            raise InputError(f"links[{index}].between", link.between, "must join two different data centres")
        if set(link.between) in seen:
            raise InputError(f"links[{index}].between", link.between, "is listed twice")
        seen.append(set(link.between))
    for stage in range(job.stages - 1):
        for a, b in sorted({(dcs[stage], dcs[stage + 1]) for dcs in job.dcs_of_pipeline}):
            if a != b and job.link_between(a, b) is None:
                crossing = f"cross from {names[a]} to {names[b]}, but no link joins them"
                allowed = f"stages {stage} and {stage + 1} {crossing}"
                raise InputError("links", [link.between for link in job.links], allowed)
    if job.swaps:
        swap_checks.check_links(job)
        return
    for stage in range(job.stages):
        for (_, a), (_, b) in pairwise((*job.ring_of(stage), job.ring_of(stage)[0])):
            if a != b and job.link_between(a, b) is None:
                crossing = f"are in {names[a]} and {names[b]}, but no link joins them"
                allowed = f"adjacent ranks in the ring of stage {stage}'s replicas {crossing}"
                raise InputError("links", [link.between for link in job.links], allowed)


def _check_stage_times(job: JobFields) -> None:
    if job.times_ms is None:
        return
    job.times_ms.check(job.stages, "times_ms")
    for name, times in job.times_ms:
        for stage, time_ms in enumerate(as_list(times)):
            if time_ms > LONGEST_MS:
                field = f"times_ms.{name}[{stage}]" if isinstance(times, list) else f"times_ms.{name}"
                raise InputError(field, time_ms, f"at most {LONGEST_MS:,.0f} ms, an hour")


def _check_times(job: JobFields) -> None:
    if job.device != "emulated":
        if job.activation_bytes is not None:
            raise InputError("activation_bytes", job.activation_bytes, "only device emulated pads messages")
        return
    if job.times_ms is None:
        raise InputError("times_ms", None, "required on device emulated: {forward, backward, recompute}")
    for stage, forward in enumerate(as_list(job.times_ms.forward)):
        if forward < SHORTEST_EMULATED_MS:
            field = (
                f"times_ms.forward[{stage}]" if isinstance(job.times_ms.forward, list) else "times_ms.forward"
            )
            raise InputError(field, forward, f"at least {SHORTEST_EMULATED_MS:g} ms on device emulated")
    if job.recompute and max(as_list(job.times_ms.recompute)) == 0:
        raise InputError("times_ms.recompute", job.times_ms.recompute, "greater than 0 if recompute is true")
    if job.activation_bytes is not None and job.activation_bytes < job.tensor_bytes:
        allowed = f"at least the real size of a message, {job.tensor_bytes} bytes"
        raise InputError("activation_bytes", job.activation_bytes, allowed)


def _check_prefill(job: JobFields) -> None:
    """Raise InputError where the job cannot prefill."""
    settings = job.prefill
    if settings is None:
        return
    if job.swaps:
        allowed = "not with strategy swap: its devices load weights in their idle time; allowed: pipeline"
        raise InputError("strategy", job.strategy, allowed)
    if job.is_mixed:
        allowed = "must be left out if pipelines run through different data centres (devices)"
        raise InputError("prefill", settings.checkpoint, allowed)
    if job.cells % settings.pp_degree:
        allowed = f"must divide cells = {job.cells}: one GPU of each cell holds a stage"
        raise InputError("prefill.pp_degree", settings.pp_degree, allowed)


def _check_adapt(job: JobFields) -> None:
    if job.adapt is not None and job.swaps:
        allowed = "must be left out with strategy swap, which uses ATOM's order"
        raise InputError("adapt", job.adapt.model_dump(), allowed)


def _check_device(job: JobFields) -> None:
    if job.ranks_per_gpu == 1:
        return
    if job.device != CUDA:
        raise InputError(
            "ranks_per_gpu", job.ranks_per_gpu, f"must be 1 on device {job.device}, as only cuda shares GPUs"
        )
    if job.tp > 1:
        allowed = "must be 1 with tp: the ranks of a stage sum over NCCL, which needs a GPU for each"
        raise InputError("ranks_per_gpu", job.ranks_per_gpu, allowed)
