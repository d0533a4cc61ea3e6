"""Launch forms of strategy swap: workers that each train the whole model, part by part (ATOM)."""

from typing import Any, ClassVar

from django import forms
from django.db.models import Prefetch, Sum

from engine.errors import InputError
from engine.job.changed import value_at
from engine.job.model_document import ConfigModel, TrainModel
from engine.job.swap.planned import planned
from webapp.accounts.forms import team_field
from webapp.accounts.models import Team
from webapp.inventory.models import DataCenter, GpuPool, Node
from webapp.jobs.check import GIB
from webapp.jobs.clone_form import CloneForm
from webapp.jobs.forms import ADAPT, PREFILL, RECOVERY, JobForm
from webapp.jobs.swap_document import SHAPE, TIMES, gpu_given, swap_document
from webapp.planning.data_fields import of_job
from webapp.planning.document import site_job
from webapp.planning.forms import RUN_ON, DataCenterChoice, of_plan

# Fields of a launch that say how pipelines run: workers that swap have none of them.
OF_PIPELINES = {
    **dict.fromkeys(
        ("policy", "sharing", "contention", "memory_limit"), "the workers follow ATOM's order of loads"
    ),
    "all_reduce": "the workers that are there form a ring",
    **dict.fromkeys(("recoveries", *RECOVERY.values()), "the run continues without a lost worker"),
    **dict.fromkeys(ADAPT, "there is no schedule to plan again"),
    **dict.fromkeys(("validation_every", "validation_prepared"), "validation is not built for it"),
    **dict.fromkeys(
        [f"prefill_{path.replace('.', '_')}" for path in PREFILL], "the GPUs load weights in their idle time"
    ),
}
SWAPPING = ["memory_gib", "host_to_device_gb_s", "gradients", "accumulation"]
BATCH = ["microbatches", "micro_batch"]
# Where neither a swap plan nor anybody has said something else: a model that trains within minutes.
FIRST: dict[str, Any] = {
    "name": "swap",
    "device": "emulated",
    "workers": 3,
    "family": "gpt",
    "layers": 6,
    "hidden": 32,
    "heads": 2,
    "seq": 16,
    "memory_gib": 0.0007,
    "host_to_device_gb_s": 0.02,
    "gradients": "host",
    "microbatches": 4,
    "micro_batch": 2,
    "accumulation": 1,
    "forward_ms": 20.0,
    "recompute_ms": 20.0,
    "backward_ms": 40.0,
    "steps": 1000,
    "lr": 0.003,
    "seed": 0,
}


class SwapFields(JobForm):
    """The launch form without what says how pipelines run, and with what workers that swap have instead."""

    memory_gib = of_job(
        "strategy.gpu.memory_bytes",
        scale=1 / GIB,
        required=False,
        label="Memory per GPU, GiB",
        help_text="How much of a GPU the job may use. Leave empty for all that the GPU type has.",
    )
    host_to_device_gb_s = of_job(
        "strategy.gpu.host_to_device_gb_s",
        required=False,
        label="Host-to-device bandwidth, GB/s",
        help_text="Leave empty for the value of the GPU type.",
    )
    gradients = of_job(
        "strategy.gradients", words={"host": "On the host", "device": "On the GPU until the update"}
    )
    accumulation = of_job(
        "cell.accumulation",
        label="Steps per update",
        help_text="Steps of each worker before the workers sum their gradients.",
    )

    layout = [JobForm.layout[0], ("Swapping", "", SWAPPING), *JobForm.layout[1:]]
    CHANGED = (*(name for name in JobForm.CHANGED if name not in OF_PIPELINES), "accumulation")
    FIELD_OF: ClassVar = {
        **JobForm.FIELD_OF,
        "gpu": "memory_gib",
        "memory_bytes": "memory_gib",
        "pipelines": "workers",
        "kind": "device",
        **{name.removesuffix("_ms"): name for name in TIMES},
    }

    def __init__(self, *args: Any, document: dict[str, Any], initial: Any = None, **kwargs: Any) -> None:
        gpu = value_at(document, "strategy.gpu", {})
        values = {
            "memory_gib": gpu["memory_bytes"] / GIB if "memory_bytes" in gpu else None,
            "host_to_device_gb_s": gpu.get("host_to_device_gb_s"),
            "gradients": value_at(document, "strategy.gradients"),
        }
        super().__init__(*args, document=document, initial={**values, **(initial or {})}, **kwargs)
        self.fields["microbatches"].label = "Mini-batches per step"
        self.fields["micro_batch"].label = "Mini-batch size, sequences"

    def absent(self, model: TrainModel | ConfigModel) -> tuple[str, ...]:
        return (*super().absent(model), *OF_PIPELINES)

    def clean(self) -> dict[str, Any]:
        for name in sorted(name for name in OF_PIPELINES if self.data.get(name)):
            label = JobForm.base_fields[name].label or name.capitalize()
            self.add_error(None, f"{label} ({name}): leave it out with strategy swap: {OF_PIPELINES[name]}.")
        return super().clean()

    def _document(self, cleaned: dict[str, Any]) -> dict[str, Any]:
        strategy = self.old["strategy"]
        gpu = gpu_given(strategy["gpu"], cleaned)
        self.old = {**self.old, "strategy": {**strategy, "gpu": gpu, "gradients": cleaned["gradients"]}}
        document = super()._document(cleaned)
        planned(site_job(document))  # refuses a model that does not fit, at its field
        return document


class SwapCloneForm(CloneForm, SwapFields):
    """A job like that of a run of workers that swap, on the same data centres."""

    layout = [CloneForm.layout[0], ("Swapping", "", SWAPPING), *CloneForm.layout[1:]]


class SwapForm(SwapFields):
    """A new job of workers that swap.

    Raises
    ------
    InputError
        No data centre of the user's has a GPU.
    """

    datacenters = DataCenterChoice(
        DataCenter.objects.none(),
        label="Data centres",
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one data centre."},
    )
    device = of_job("device.kind", label="Run on", words={kind: str(label) for kind, label in RUN_ON})
    workers = of_job(
        "cell.pipelines",
        help_text="One per GPU, spread evenly over the data centres. On three or more nodes, the run "
        "survives the loss of any one.",
    )
    family = of_job("model.family", words={"gpt": "GPT", "llama": "Llama"})
    layers = of_job("model.layers")
    hidden = of_job("model.hidden")
    heads = of_job("model.heads")
    kv_heads = of_job(
        "model.kv_heads", label="Key/value heads", help_text="Leave empty for as many as heads."
    )
    ffn = of_job("model.ffn", label="Inner width", help_text="Of the MLP. Leave empty for the family's own.")
    seq = of_job("model.seq", label="Sequence length, tokens")
    forward_ms = of_plan(
        "job.forward_ms",
        label="Forward time, ms",
        required=True,
        help_text="Of one mini-batch through the whole model.",
    )
    recompute_ms = of_plan("job.recompute_ms", label="Recompute time, ms", required=True)
    backward_ms = of_plan("job.backward_ms", label="Backward time, ms", required=True)

    layout = [
        JobForm.layout[0],
        ("Workers", "", ["team", "datacenters", "device", "workers"]),
        ("Model", "", [name for name in SHAPE if name != "vocab"]),
        ("Swapping", "", [*SWAPPING, *BATCH]),
        ("Times", "Only emulated GPUs use them", [*TIMES]),
        *(
            (title, note, [name for name in names if name not in BATCH])
            for title, note, names in JobForm.layout[1:]
        ),
    ]

    def __init__(self, data: Any = None, *, user: Any, initial: dict[str, Any] | None = None) -> None:
        counted = Prefetch("pools", queryset=GpuPool.objects.with_counts().order_by("gpu_type"))
        offered = DataCenter.objects.visible_to(user).prefetch_related(counted)
        team, values = _first(offered, {**FIRST, **(initial or {})})
        super().__init__(data, document=swap_document(values), team=team, initial=values)
        team_field(self, user)
        self.fields["datacenters"].queryset = offered  # type: ignore[attr-defined]

    def clean(self) -> dict[str, Any]:
        chosen, team = self.cleaned_data.get("datacenters"), self.cleaned_data.get("team")
        if chosen and team and any(dc.team_id != team.pk for dc in chosen):
            self.add_error("datacenters", f"Choose data centres of team {team} only.")
        return super().clean()

    def _document(self, cleaned: dict[str, Any]) -> dict[str, Any]:
        self.team, self.old = cleaned["team"], swap_document(cleaned)
        return super()._document(cleaned)


def _first(offered: Any, values: dict[str, Any]) -> tuple[Team, dict[str, Any]]:
    """A team, and the values of a new form: the data centre with the most GPUs of a device, no more workers.

    Raises InputError where no data centre has a GPU.
    """
    counted = (
        Node.objects.filter(dc__in=offered).order_by().values("dc", "device").annotate(count=Sum("gpus"))
    )
    wanted = values["device"]
    most = max(counted, key=lambda row: (row["device"] == wanted, row["count"]), default=None)
    if most is None:
        raise InputError("datacenters", None, "add a data centre with nodes first: no GPU is registered")
    dc = offered.select_related("team").get(pk=most["dc"])
    workers = min(values["workers"], most["count"])
    first = {"datacenters": [dc], "team": dc.team, "device": most["device"], "workers": workers}
    return dc.team, {**values, **first}
