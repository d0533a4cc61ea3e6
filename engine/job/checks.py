"""Rules between the fields of a training job. Each raises InputError with the field that breaks it."""

from operator import attrgetter

from engine.errors import InputError
from engine.inputs import nearest
from engine.job import swap_checks
from engine.job.all_reduce import unlinked
from engine.job.devices import CUDA, Devices
from engine.job.fields import JobFields, as_list
from engine.job.learning_rate import LearningRateSchedule
from engine.job.model_document import CUT_FAMILIES, ConfigModel, ModuleModel
from engine.job.sections.limits import MOST_RANKS

LONGEST_MS = 3.6e6
SHORTEST_EMULATED_MS = 5.0  # below it the overshoot of sleeping (0.1–0.4 ms) is no longer small
_NOT_WITH_TP = {
    "cell.devices": "a placement gives each stage of a pipeline one device",
    "failures.recovery": "ranks keep and transfer the state of whole stages",
    "prefill": "a prefill worker uses one GPU, but the ranks of a stage wait for each other in every op",
    "failures.adapt": "the ranks of a stage would have to change the schedule together",
}


def check(job: JobFields) -> None:
    """All rules except those of the job's scenario."""
    _check_resume(job)
    _check_learning_rate(job)
    _check_datacenters(job)
    if job.swap_strategy is not None:
        swap_checks.check(job, job.swap_strategy)
    _check_tp(job)
    _check_all_reduce(job)
    _check_stages(job)
    _check_data(job)
    _check_links(job)
    _check_stage_times(job)
    _check_times(job)
    _check_prefill(job)
    _check_adapt(job)
    _check_device(job)


def _check_resume(job: JobFields) -> None:
    if job.persistence.resume is True and job.persistence.checkpoint is None:
        raise InputError(
            "persistence.resume", True, "needs checkpoint.dir to look in; or give the path of a checkpoint"
        )


def _check_learning_rate(job: JobFields) -> None:
    schedule = job.optimizer.lr_schedule
    warmup = schedule.warmup_steps
    if warmup > job.optimizer.steps:
        allowed = f"at most steps = {job.optimizer.steps}: the learning rate would never be reached"
        raise InputError("optimizer.lr_schedule.warmup_steps", warmup, allowed)
    ends = schedule.decay_steps
    if ends is not None and ends < warmup:
        allowed = f"at least warmup_steps = {warmup}: the decay begins after the warm-up"
        raise InputError("optimizer.lr_schedule.decay_steps", ends, allowed)
    _check_cooldown(schedule, ends or job.optimizer.steps)


def _check_cooldown(schedule: LearningRateSchedule, ends: int) -> None:
    """Raise InputError unless the decay of wsd fits between the warm-up and step `ends`."""
    field, length = "optimizer.lr_schedule.cooldown_steps", schedule.cooldown_steps
    if schedule.decay != "wsd":
        if length is not None:
            raise InputError(
                field, length, f"must be left out with decay {schedule.decay}: it belongs to wsd"
            )
        return
    if length is None:
        raise InputError(field, None, "required with decay wsd: how many steps the decay takes")
    left = ends - schedule.warmup_steps
    if length > left:
        allowed = f"at most {left}: the warm-up leaves that many of {ends} steps"
        raise InputError(field, length, allowed)


def _check_datacenters(job: JobFields) -> None:
    names = [dc.name for dc in job.datacenters]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise InputError(f"datacenters[{index}].name", name, "each data centre needs its own name")


def _check_stages(job: JobFields) -> None:
    if job.cell.dc_of_stage and len(job.cell.dc_of_stage) != job.cell.stages:
        allowed = f"one DC index per stage: {job.cell.stages} expected, {len(job.cell.dc_of_stage)} given"
        raise InputError("cell.dc_of_stage", job.cell.dc_of_stage, allowed)
    for stage, dc in enumerate(job.cell.dc_of_stage):
        if dc >= len(job.datacenters):
            raise InputError(
                f"cell.dc_of_stage[{stage}]",
                dc,
                f"an index into datacenters, 0 to {len(job.datacenters) - 1}",
            )
    _check_layers(job)
    if job.cell.world_size > MOST_RANKS:
        raise InputError(
            "cell.pipelines", job.cell.pipelines, f"gives {job.cell.world_size} ranks; at most {MOST_RANKS}"
        )
    _check_cells(job)
    if job.cell.devices is not None:
        _check_devices(job, job.cell.devices)
        return
    for index, site in enumerate(job.datacenters):
        hosted = job.dcs.count(index)
        needed = hosted * job.cell.pipelines * job.cell.tp
        if needed > site.gpus:
            tp = f" × tp = {job.cell.tp}" if job.cell.tp > 1 else ""
            allowed = f"{site.name} needs {needed} ({hosted} stages × {job.cell.pipelines} pipelines{tp})"
            raise InputError(f"datacenters[{index}].gpus", site.gpus, allowed)


def _check_layers(job: JobFields) -> None:
    counts = job.cell.layers_per_stage
    if counts is not None:
        if len(counts) != job.cell.stages:
            allowed = f"one number per stage: {job.cell.stages} expected, {len(counts)} given"
            raise InputError("cell.layers_per_stage", counts, allowed)
        if sum(counts) != job.model.layers:
            allowed = f"must add up to model.layers = {job.model.layers}"
            raise InputError("cell.layers_per_stage", counts, allowed)
    error = job.chunk_without_layer(1 if job.swap_strategy else job.pipeline_strategy.chunks or 1)
    if error is not None:
        raise error


def _check_tp(job: JobFields) -> None:
    if job.cell.tp == 1:
        return
    if job.cell.zero:
        allowed = (
            f"must be 0 with tp = {job.cell.tp}: the optimizer's state of weights that are cut is not shared"
        )
        raise InputError("cell.zero", job.cell.zero, allowed)
    for name, reason in _NOT_WITH_TP.items():
        value = attrgetter(name)(job)
        if value is not None:
            allowed = f"not available with tp = {job.cell.tp}: {reason}"
            raise InputError(name, value.model_dump(exclude_none=True), allowed)
    if job.device.kind == "emulated":
        allowed = (
            "1 on device emulated, where the profile sets the times of ops, whatever the number of ranks"
        )
        raise InputError("cell.tp", job.cell.tp, allowed)
    model = job.model
    if isinstance(model, ModuleModel):
        raise InputError("cell.tp", job.cell.tp, "1 with model.module: its layers are not cut")
    if isinstance(model, ConfigModel):
        _check_tp_of(job, model)
    counts = {"heads": model.shape.heads, "kv_heads": model.shape.kv_heads, "ffn": model.shape.ffn}
    for name, count in counts.items():
        if count % job.cell.tp:
            raise InputError("cell.tp", job.cell.tp, f"must divide model.{name} = {count}")
    rows = -(-model.vocabulary // job.cell.tp)  # of the embedding, of each rank but the last
    if (job.cell.tp - 1) * rows >= model.vocabulary:
        allowed = (
            f"too many ranks for model.vocabulary = {model.vocabulary}: the last would have no row of it"
        )
        raise InputError("cell.tp", job.cell.tp, allowed)


def _check_tp_of(job: JobFields, model: ConfigModel) -> None:
    """Raise InputError where the layers of a model of transformers are not cut among ranks."""
    reason = None
    if model.config["model_type"] not in CUT_FAMILIES:
        reason = f"layers of {model.config['model_type']} are not cut, but those of {', '.join(CUT_FAMILIES)}"
    elif model.shape.has.tied:
        reason = "a tied embedding is not cut (tie_word_embeddings)"
    elif job.device.dtype == "bf16":
        reason = "weights that are cut are not cast (dtype bf16)"
    if reason:
        raise InputError("cell.tp", job.cell.tp, f"1 with model.config: {reason}")


def _check_all_reduce(job: JobFields) -> None:
    choice = job.cell.all_reduce
    if choice in ("ring", "auto"):
        return
    if job.swap_strategy:
        allowed = "ring or auto with strategy swap, whose workers come and go"
        raise InputError("cell.all_reduce", choice, allowed)
    if job.cell.tp > 1:
        allowed = f"ring or auto with tp = {job.cell.tp}: only the first rank of a stage has connections"
        raise InputError("cell.all_reduce", choice, allowed)


def _check_cells(job: JobFields) -> None:
    if job.cell.pipelines % job.cell.cells:
        raise InputError(
            "cell.cells", job.cell.cells, f"a number that divides the {job.cell.pipelines} pipelines"
        )
    if job.cell.cells > 1 and job.is_mixed:
        allowed = "1: devices place pipelines in different data centres, so cells differ"
        raise InputError("cell.cells", job.cell.cells, allowed)


def _check_data(job: JobFields) -> None:
    _check_prepared(job)
    files, field = job.data.path, job.data.path_field
    if not isinstance(files, dict):
        return
    names = [dc.name for dc in job.datacenters]
    for name in files:
        if name not in names:
            raise InputError(f"{field}.{name}", files[name], "no such data centre, " + nearest(name, names))
    for name in sorted({names[dc] for dcs in job.dcs_of_pipeline for dc in dcs}):
        if name not in files:
            raise InputError(f"{field}.{name}", None, "every data centre with stages needs a file or folder")


def _check_prepared(job: JobFields) -> None:
    data, validation = job.data, job.data.validation
    if data.prepared is None:
        if validation is not None and validation.prepared is not None:
            allowed = "must be left out: it belongs to data.prepared; of data.files a share is validated on"
            raise InputError("data.validation.prepared", validation.prepared, allowed)
        return
    if data.files is not None:
        raise InputError("data.files", data.files, "must be left out with data.prepared")
    if validation is not None and validation.prepared is None:
        allowed = "required with data.prepared: another folder of `meridian data prepare`"
        raise InputError("data.validation.prepared", None, allowed)


def _check_devices(job: JobFields, devices: Devices) -> None:
    if job.cell.dc_of_stage:
        raise InputError(
            "cell.dc_of_stage", job.cell.dc_of_stage, "must be left out: devices already says it"
        )
    devices.check(
        pipelines=job.cell.pipelines, stages=job.cell.stages, gpus=[dc.gpus for dc in job.datacenters]
    )
    if job.is_mixed and not job.swap_strategy and job.pipeline_strategy.sharing == "temporal":
        allowed = "spatial: pipelines run through different data centres and share no links"
        raise InputError("strategy.sharing", job.pipeline_strategy.sharing, allowed)


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
    for stage in range(job.cell.stages - 1):
        for a, b in sorted({(dcs[stage], dcs[stage + 1]) for dcs in job.dcs_of_pipeline}):
            if a != b and job.link_between(a, b) is None:
                crossing = f"cross from {names[a]} to {names[b]}, but no link joins them"
                allowed = f"stages {stage} and {stage + 1} {crossing}"
                raise InputError("links", [link.between for link in job.links], allowed)
    if job.swap_strategy:
        swap_checks.check_links(job)
        return
    for stage in range(job.cell.stages):
        apart = unlinked(job, stage)
        if apart is not None:
            a, b = apart
            crossing = f"are in {names[a]} and {names[b]}, but no link joins them"
            allowed = f"replicas of stage {stage} that sum gradients ({job.cell.all_reduce}) {crossing}"
            raise InputError("links", [link.between for link in job.links], allowed)


def _check_stage_times(job: JobFields) -> None:
    times_ms = job.device.times_ms
    if times_ms is None:
        return
    times_ms.check(job.cell.stages, "device.times_ms")
    for name, times in times_ms:
        for at, time_ms in _by_stage(name, times):
            if time_ms > LONGEST_MS:
                raise InputError(at, time_ms, f"at most {LONGEST_MS:,.0f} ms, an hour")


def _by_stage(name: str, times: float | list[float]) -> list[tuple[str, float]]:
    """The times of one kind of op, each with its field."""
    field = f"device.times_ms.{name}"
    return (
        [(f"{field}[{i}]", ms) for i, ms in enumerate(times)] if isinstance(times, list) else [(field, times)]
    )


def _check_times(job: JobFields) -> None:
    if job.device.kind != "emulated":
        if job.cell.activation_bytes is not None:
            raise InputError(
                "cell.activation_bytes", job.cell.activation_bytes, "only device emulated pads messages"
            )
        return
    if job.device.times_ms is None:
        raise InputError(
            "device.times_ms", None, "required on device emulated: {forward, backward, recompute}"
        )
    for at, forward in _by_stage("forward", job.device.times_ms.forward):
        if forward < SHORTEST_EMULATED_MS:
            raise InputError(at, forward, f"at least {SHORTEST_EMULATED_MS:g} ms on device emulated")
    if job.cell.recompute and max(as_list(job.device.times_ms.recompute)) == 0:
        raise InputError(
            "device.times_ms.recompute", job.device.times_ms.recompute, "greater than 0 if recompute is true"
        )
    if job.cell.activation_bytes is not None and job.cell.activation_bytes < job.tensor_bytes:
        allowed = f"at least the real size of a message, {job.tensor_bytes} bytes"
        raise InputError("cell.activation_bytes", job.cell.activation_bytes, allowed)


def _check_prefill(job: JobFields) -> None:
    """Raise InputError where the job cannot prefill."""
    settings = job.prefill
    if settings is None:
        return
    if job.swap_strategy:
        allowed = "not with strategy swap: its devices load weights in their idle time; allowed: pipeline"
        raise InputError("strategy.kind", job.strategy.kind, allowed)
    if job.is_mixed:
        allowed = "must be left out if pipelines run through different data centres (devices)"
        raise InputError("prefill", settings.checkpoint, allowed)
    if job.cell.cells % settings.pp_degree:
        allowed = f"must divide cells = {job.cell.cells}: one GPU of each cell holds a stage"
        raise InputError("prefill.pp_degree", settings.pp_degree, allowed)


def _check_adapt(job: JobFields) -> None:
    adapt, field = job.failures.adapt, "failures.adapt.layout"
    if adapt is None:
        return
    if job.swap_strategy:
        allowed = "must be left out with strategy swap, which uses ATOM's order"
        raise InputError("failures.adapt", adapt.model_dump(), allowed)
    if adapt.most_gpus is not None:
        _check_most_gpus(job, adapt.most_gpus, layout=adapt.layout)
    if not adapt.layout:
        return
    if job.failures.recovery is None:
        raise InputError(field, True, "needs failures.recovery, which starts ranks again during a run")
    if job.persistence.checkpoint is None:
        raise InputError(field, True, "needs persistence.checkpoint, from which the new layout begins")


def _check_most_gpus(job: JobFields, most: int, *, layout: bool) -> None:
    field = "failures.adapt.most_gpus"
    if not layout:
        raise InputError(field, most, "needs failures.adapt.layout: GPUs in reserve are taken by a move")
    if job.cell.devices is not None:
        raise InputError(field, most, "must be left out with devices, which name the GPUs of the run")
    if job.prefill is not None:
        raise InputError(field, most, "must be left out with prefill, which counts the GPUs of the launch")
    if most < job.cell.world_size:
        allowed = f"at least {job.cell.world_size}, the GPUs with which the run begins"
        raise InputError(field, most, allowed)


def _check_device(job: JobFields) -> None:
    if job.device.nccl is not None and job.device.kind != CUDA:
        allowed = f"must be left out on device {job.device.kind}: only cuda has NCCL"
        raise InputError("device.nccl", job.device.nccl, allowed)
    if job.device.nccl is False and job.cell.tp > 1:
        raise InputError("device.nccl", False, "must be left out with tp: the ranks of a stage sum over NCCL")
    if job.device.nccl and job.device.ranks_per_gpu > 1:
        allowed = "must be left out or false with ranks_per_gpu: NCCL does not let ranks share a GPU"
        raise InputError("device.nccl", True, allowed)
    if job.device.ranks_per_gpu == 1:
        return
    if job.device.kind != CUDA:
        raise InputError(
            "device.ranks_per_gpu",
            job.device.ranks_per_gpu,
            f"must be 1 on device {job.device.kind}, as only cuda shares GPUs",
        )
    if job.cell.tp > 1:
        allowed = "must be 1 with tp: the ranks of a stage sum over NCCL, which needs a GPU for each"
        raise InputError("device.ranks_per_gpu", job.device.ranks_per_gpu, allowed)
