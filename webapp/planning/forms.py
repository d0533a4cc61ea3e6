"""The plan form: inventory and answers in, a `meridian plan` document out."""

from functools import partial
from typing import Any, ClassVar

from django import forms
from django.db.models import Prefetch, Sum

from engine.errors import InputError
from engine.inputs import parse
from engine.job.model_document import TrainModel
from engine.plan.request import DEFAULT_MFU, PlanRequest
from engine.schedule.scenario import POLICIES
from webapp.accounts.forms import ForTeam
from webapp.common.document_fields import document_field
from webapp.common.formkit import Sectioned, policy_choices
from webapp.common.number_lists import Numbers
from webapp.inventory.models import DataCenter, Device, GpuPool, Node
from webapp.planning import compose
from webapp.planning.data_fields import PATH_OF, DataFields, of_job, vocabulary_field
from webapp.planning.model_fields import FIELDS as MODEL_FIELDS
from webapp.planning.model_fields import ModelFields
from webapp.planning.planned_model import model_to_train, with_files
from webapp.planning.work import answers_at_once

of_plan = partial(document_field, PlanRequest)

SEVERAL = "Enter several, such as 1, 2, 4, to let the search choose."


RUN_ON = [
    *((each.value, each.label) for each in (Device.EMULATED, Device.CPU)),
    (Device.CUDA.value, f"{Device.CUDA.label} (experimental)"),
]
# `optimal` takes a minute a cell: the page Schedules has progress and a stop for that.
MOST_TICKED = 20  # of a new plan; more are for the user to choose from
MOST_STAGES_AT_FIRST = 6  # of a new plan; fewer where there are fewer GPUs
AT_ONCE = tuple(name for name in POLICIES if name != "optimal")


class DataCenterChoice(forms.ModelMultipleChoiceField):
    """Data centres to tick, each with its GPUs and what one costs an hour."""

    def label_from_instance(self, dc: Any) -> str:
        pools = [
            f"{pool.gpu_count:,} × {pool.gpu_type}, ${pool.price_per_gpu_hour:,.2f}/GPU h"
            for pool in dc.pools.all()
        ]
        return f"{dc.name}: {'; '.join(pools)}" if pools else f"{dc.name}: no GPUs"


def everywhere(user: Any) -> dict[str, Any]:
    """The data centres of a new plan: all of the user's teams, where they are of one and not too many."""
    rows = list(DataCenter.objects.visible_to(user).values_list("pk", "team")[: MOST_TICKED + 1])
    alike = len(rows) <= MOST_TICKED and len({team for _, team in rows}) == 1
    return {"datacenters": [pk for pk, _ in rows]} if alike else {}


class PlanForm(Sectioned, ModelFields, DataFields, ForTeam):
    """What to plan, and what a launch of an option trains: the planned model itself, or a small stand-in.

    at_once : of a valid form, whether the answer is there before anybody has to wait.
    """

    name = forms.CharField(max_length=80)
    datacenters = DataCenterChoice(
        DataCenter.objects.none(),
        label="Data centres",
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one data centre."},
    )
    source = forms.ChoiceField(
        label="Source of times",
        choices=[("model", "The model and the GPU type"), ("times", "Times entered below")],
        initial="model",
    )
    model_micro_batch = Numbers(
        whole=True, label="Microbatch size, sequences", initial=[1], required=False, help_text=SEVERAL
    )
    tp = Numbers(whole=True, label="Tensor-parallel degree", initial=[1], required=False, help_text=SEVERAL)
    sequence_parallel = forms.ChoiceField(
        label="Sequence parallelism",
        choices=[(compose.ON, "On"), (compose.OFF, "Off")],
        initial=compose.ON,
        required=False,
        help_text="The tensor-parallel GPUs also share norms, dropouts and residuals.",
    )
    cp = of_plan(
        "job.cp",
        label="Context-parallel degree",
        initial=1,
        required=False,
        help_text="GPUs of a stage that share the tokens of each sequence. Leave MFU empty to count the "
        "messages. A plan with more than 1 cannot be launched.",
    )
    ep = of_plan(
        "job.ep",
        label="Expert-parallel degree",
        initial=1,
        required=False,
        help_text="Pipelines that share the experts of their stages. It must divide the number of experts. "
        "Leave MFU empty to count the messages. A plan with more than 1 cannot be launched.",
    )
    spread = forms.ChoiceField(
        label="Spread of the layers",
        choices=[("balanced", "By speed and memory of the GPUs"), ("even", "Even")],
        initial="balanced",
        required=False,
    )
    layers_per_stage = Numbers(
        whole=True,
        label="Layers per stage",
        required=False,
        help_text="One number per stage in pipeline order, such as 6, 6, 4, 4. Leave empty to spread them.",
    )
    mfu = of_plan("job.mfu", label="MFU", initial=DEFAULT_MFU)
    recompute = of_plan(
        "job.recompute",
        label="Recomputation",
        words={"full": "Whole stages", "none": "None", "auto": "By stage, where memory asks for it"},
        required=False,
        help_text="By stage needs even layers, or numbers. A training run recomputes in all stages or in "
        "none: a plan in which they differ cannot be launched.",
    )
    zero = of_plan(
        "job.zero",
        label="Optimizer states",
        words={0: "On every replica", 1: "Shared by the replicas of a stage (ZeRO-1)"},
        required=False,
        initial=0,
        help_text="Sharing saves memory and sends as many bytes. A training run of the plan shares them too.",
    )
    weight_budget_gb = of_plan(
        "job.prefill.weight_budget_gb",
        label="Memory reserved for prefill: weights, GB",
        required=False,
        help_text="On each GPU, if the bubbles will be sold. Leave empty to reserve nothing.",
    )
    kv_budget_gb = of_plan(
        "job.prefill.kv_budget_gb",
        label="KV caches, GB",
        required=False,
        help_text="Leave empty for {default} if weights are given.",
    )
    memory_margin = of_plan(
        "job.memory_margin",
        scale=100,
        label="Memory margin, %",
        required=False,
        help_text="Memory to keep free on each GPU, as a share of what the plan counts. Measured stages took "
        "up to 9 % more. Leave empty for none.",
    )
    forward_ms = of_plan("job.forward_ms", label="Forward time, ms", initial=20)
    backward_ms = of_plan("job.backward_ms", label="Backward time, ms", initial=40)
    recompute_ms = of_plan("job.recompute_ms", label="Recompute time, ms", initial=20)
    activation_bytes = of_job(
        "cell.activation_bytes",
        label="Message size, bytes",
        initial=5_000_000,
        help_text="Activation or gradient of one microbatch.",
    )
    comm_to_compute = of_plan(
        "job.comm_to_compute",
        label="Transfer time / forward time, C",
        help_text="Leave empty to compute it from the message size and the slowest link.",
    )
    parameters_per_stage = of_plan("job.parameters_per_stage", whole=True, label="Parameters per stage")
    partitions = Numbers(
        whole=True,
        label="Stages",
        initial=[6],
        help_text="For a model, enter several, such as 8, 16, to let the search choose.",
    )
    microbatches = of_job("cell.microbatches", label="Microbatches", initial=4)
    method = of_plan(
        "method",
        words={"search": "Search", "algorithm1": "Algorithm 1"},
        required=False,
        initial="search",
        help_text="The search tries any order and split of data centres. Algorithm 1 fills them as the "
        "Atlas paper does.",
    )
    policy = forms.ChoiceField(
        choices=policy_choices(sorted(AT_ONCE, key=lambda policy: policy != "auto")),
        initial="auto",
        help_text="Automatic shows the best fast policy first, then tries the others in the background.",
    )
    max_dp_cells = of_plan("max_dp_cells", label="DP-cells, at most")
    order = of_plan("order", words={"gpus": "Most GPUs first", "price": "Cheapest first"}, label="Fill order")
    objective = of_plan(
        "objective",
        words={"throughput": "Throughput", "cost": "Cost", "cost_per_token": "Cost per token"},
    )
    bill = of_plan("bill", words={"used": "GPUs used", "whole": "Whole data centres"}, label="Billing")
    budget_per_iteration = of_plan("budget_per_iteration", label="Cost per iteration, at most, $")
    iterations = of_plan("iterations")
    deadline_h = of_plan("deadline_h", label="Deadline, h")
    trains = forms.ChoiceField(
        label="Trained model",
        choices=[(compose.PLANNED, "The planned model"), (compose.SMALL, "A stand-in with its times")],
        initial=compose.PLANNED,
        required=False,
        help_text="What a launch trains. A stand-in is the small model under Training: on emulated GPUs it "
        "takes the times and message sizes of the planned one, and every page calls it a stand-in.",
    )
    device = forms.ChoiceField(label="Devices", choices=RUN_ON, initial=Device.EMULATED, required=False)
    layers = of_job("model.layers", required=False, initial=6)
    hidden = of_job("model.hidden", required=False, initial=64)
    heads = of_job("model.heads", required=False, initial=4)
    seq = of_job("model.seq", label="Sequence length, tokens", required=False, initial=64)
    vocab = vocabulary_field()
    micro_batch = of_job("cell.micro_batch", label="Microbatch size, sequences", required=False, initial=2)
    steps = of_job("optimizer.steps", label="Iterations to train", required=False, initial=1000)
    lr = of_job("optimizer.lr", label="Learning rate", required=False, initial=0.003)
    seed = of_job("optimizer.seed", required=False, initial=0)

    layout = [
        ("Plan", "", ["team", "name"]),
        ("Model", "", [*MODEL_FIELDS, "trains"]),
        ("Training data and weights", "Read by the nodes when the plan is launched", list(PATH_OF)),
        ("Data centres", "Including the links between them", ["datacenters"]),
        ("Goal", "", ["objective", "budget_per_iteration", "iterations", "deadline_h"]),
        (
            "Layout",
            "",
            [
                "partitions",
                "microbatches",
                "model_micro_batch",
                "tp",
                "sequence_parallel",
                "cp",
                "ep",
                "spread",
                "layers_per_stage",
            ],
        ),
        ("Search", "", ["policy", "method", "order", "max_dp_cells", "bill"]),
        (
            "Times and memory",
            "Of one microbatch on one stage",
            [
                "source",
                "forward_ms",
                "backward_ms",
                "recompute_ms",
                "activation_bytes",
                "comm_to_compute",
                "parameters_per_stage",
                "mfu",
                "recompute",
                "zero",
                "weight_budget_gb",
                "kv_budget_gb",
                "memory_margin",
            ],
        ),
        (
            "Training",
            "Used when the plan is launched",
            [
                "device",
                "layers",
                "hidden",
                "heads",
                "seq",
                "vocab",
                "micro_batch",
                "steps",
                "lr",
                "seed",
            ],
        ),
    ]
    FOLDED: ClassVar = dict.fromkeys(("Layout", "Search", "Times and memory", "Training"), "Advanced")

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, user=user, **kwargs)
        self.user = user
        layout = ("partitions", "tp", "cp", "ep", "model_micro_batch", "microbatches")
        self.preview_on(**dict.fromkeys((*layout, "datacenters", "device"), "change"))
        counted = Prefetch("pools", queryset=GpuPool.objects.with_counts().order_by("gpu_type"))
        offered = DataCenter.objects.visible_to(user).prefetch_related(counted)
        self.fields["datacenters"].queryset = offered  # type: ignore[attr-defined]
        self._suit(user)

    def _suit(self, user: Any) -> None:
        """Begin with the device that most of the user's GPUs are of, and with stages that they fill."""
        counted = Node.objects.visible_to(user).order_by().values("device").annotate(count=Sum("gpus"))
        most = max(counted, key=lambda row: row["count"], default=None)
        if most:
            self.fields["device"].initial = most["device"]
            self.fields["partitions"].initial = [min(MOST_STAGES_AT_FIRST, most["count"])]

    def needs_model(self, cleaned: dict[str, Any]) -> bool:
        return cleaned.get("source") == "model"

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        chosen, team = cleaned.get("datacenters"), cleaned.get("team")
        if chosen and team and any(dc.team_id != team.pk for dc in chosen):
            self.add_error("datacenters", f"Choose data centres of team {team} only.")
        if cleaned.get("policy") == "auto" and cleaned.get("method") == "algorithm1":
            self.add_error(
                "policy", "Algorithm 1 needs one policy: choose a policy, or choose the method Search."
            )
        if cleaned.get("kv_budget_gb") and not cleaned.get("weight_budget_gb"):
            self.add_error("weight_budget_gb", "Enter the memory for weights too: KV caches need a model.")
        required = ("model",) if cleaned.get("source") == "model" else ("forward_ms", "backward_ms")
        for name in required:
            if name not in self.errors and cleaned.get(name) in (None, ""):
                self.add_error(name, "This field is required.")
        if not self.errors:
            self._refuse_absent_device(cleaned)
        if not self.errors:
            self._compose(cleaned)
        return cleaned

    def _refuse_absent_device(self, cleaned: dict[str, Any]) -> None:
        """An error where none of the nodes that a launch could use is of the device that it trains on."""
        wanted = compose.device_of(cleaned)
        nodes = Node.objects.filter(dc__in=cleaned["datacenters"]).order_by()
        there = sorted(Device(device).label for device in nodes.values_list("device", flat=True).distinct())
        if wanted and there and (label := Device(wanted).label) not in there:
            message = f"No node of the chosen data centres is of {label}. They have: {', '.join(there)}."
            self.add_error("device", message)

    def _compose(self, cleaned: dict[str, Any]) -> None:
        try:
            self.request_document = compose.request_of(cleaned)
            self.at_once = answers_at_once(parse(PlanRequest, self.request_document))
            self.training = compose.training_of(cleaned)
            if self.training:
                self._refuse_model_to_train(self.training)
        except InputError as error:
            self.take_input_error(error)

    def _refuse_model_to_train(self, training: dict[str, Any]) -> None:
        """Raise InputError for a stand-in that is none, and for files that the trained model cannot have."""
        if "model" in training:
            parse(TrainModel, training["model"], at="training.model")
        if any(training.get(name) for name in ("tokenizer", "init")):
            with_files(training.get("model") or self._planned_model(), training)

    def _planned_model(self) -> dict[str, Any]:
        document = self.request_document
        layout = parse(PlanRequest, document).job.layouts[0]
        return model_to_train(document["job"]["model"], layout.partitions)
