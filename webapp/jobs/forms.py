"""The launch form: the document of a run with the fields that people vary."""

from typing import Any, ClassVar

from django import forms

from engine.errors import InputError
from engine.inputs import parse
from engine.job.changed import changed, value_at
from engine.job.job import TrainJob
from engine.job.memory import most_layers
from engine.job.model_document import ConfigModel, TrainModel
from engine.job.sections.device import DeviceSection
from engine.job.sections.paths import PATHS
from engine.job.sections.tracking import TrackingSection
from engine.schedule.contention import RULES, contention_name
from engine.schedule.scenario import BEST, POLICIES
from webapp.accounts.models import Team
from webapp.common.formkit import Sectioned, policy_choices
from webapp.common.number_lists import Counts
from webapp.inventory.selectors import pools
from webapp.jobs.dry import dry_run_document
from webapp.jobs.gpu_inventory import GpuOfRank
from webapp.jobs.models import Priority
from webapp.jobs.optimizer_fields import OPTIMIZER, OptimizerFields, optimizer_values, with_optimizer
from webapp.planning.data_fields import PATH_OF, DataFields, absolute, of_job, vocabulary_field
from webapp.planning.document import site_job

ALL_REDUCE = {
    "auto": "The fastest, as predicted",
    "hierarchical": "Hierarchical: in each data centre, then between them",
    "sharded": "Sharded: each replica sums one part for all",
}
DATA = "Training data and weights"  # the title of a section
# Fields of the document that are not of a flat one, by their field here.
FILES = {**PATH_OF, "vocab": "model.vocab"}
SHARING = {"temporal": "Temporal", "spatial": "Spatial"}
# Of one policy; another has its own.
POLICY_RULES = {"recompute_rule": None, "chunks": None, "traversal": None}
# What a schedule is made for: where none of it changes, the schedule stays.
SCHEDULE_IS_OF = (
    "strategy.policy",
    "strategy.sharing",
    "strategy.contention",
    "strategy.memory_limit",
    "cell.microbatches",
    "cell.micro_batch",
    "model",
    "device.times_ms",
)
SECTIONS = frozenset(path.partition(".")[0] for path in PATHS.values()) | {"tracking"}
# Of the document's section `prefill`, by their path in it.
PREFILL = (
    "checkpoint",
    "name",
    "latency.a_ms",
    "latency.b_ms",
    "latency.c_ms",
    "chunk_tokens",
    "weight_budget_gb",
    "pp_degree",
    "kv_budget_gb",
    "reserve_ms",
)
# Of the document's section `recovery`, other than how often: their fields.
RECOVERY = {"wait_s": "recovery_wait_s", "layers_per_gpu": "recovery_layers_per_gpu"}
TRACKERS = tuple(TrackingSection.model_fields)
# Where the document has what a field shows as it stands there, or its default.
IN_SECTIONS = {
    "dtype": "device.dtype",
    "checkpoint_dir": "persistence.checkpoint.dir",
    "checkpoint_every": "persistence.checkpoint.every",
    "validation_every": "data.validation.every",
    "validation_prepared": "data.validation.prepared",
    "recoveries": "failures.recovery.attempts",
    "adapt_layout": "failures.adapt.layout",
    "adapt_most_gpus": "failures.adapt.most_gpus",
    **{f"tracking_{name}": f"tracking.{name}" for name in TRACKERS},
}
# What the memory of a GPU hangs on: where it is too small, the first of these that was changed is to blame.
NEEDS_MEMORY = (
    "memory_gib",
    "micro_batch",
    "microbatches",
    "memory_limit",
    "policy",
    "prefill_kv_budget_gb",
    "prefill_checkpoint",
)


ADAPT = ("adapt_percent", "adapt_policy", "adapt_layout", "adapt_most_gpus")


def _tracker(label: str) -> forms.CharField:
    """The field of a tracker's folder."""
    help_text = (
        "A folder that all nodes open to runs; the machine of the first rank writes it. Leave empty for none."
    )
    return forms.CharField(label=label, max_length=500, required=False, help_text=help_text)


def _prefill_field(path: str) -> str:
    return f"prefill_{path.replace('.', '_')}"


def _of_job(job: TrainJob, path: str) -> Any:
    """The value at a path of a job, with the document's default; None where its section is not given."""
    value: Any = job
    for name in path.split("."):
        value = None if value is None else getattr(value, name)
    return value


def _with(section: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """A section of the document with what is asked for; what is left empty is left out."""
    others = {name: value for name, value in section.items() if name not in values}
    return others | {name: value for name, value in values.items() if value not in (None, "")}


def _for_schedule(document: dict[str, Any], path: str) -> Any:
    """What a schedule hangs on, of the value at a path: of a model not what it reads."""
    value = value_at(document, path)
    return {**value, "tokenizer": None, "init": None} if path == "model" else value


def _most_layers(document: dict[str, Any], team: Team) -> int | None:
    """How many layers the smallest GPU of a job holds; None where that is not known, or its stages stay."""
    try:
        job = site_job(document)
        if job.is_mixed or job.swap_strategy:
            return None
        named = pools(team, [job.datacenters[dc].name for dc in set(job.dcs)])
        least = min((pool.gpu.memory_bytes for pool in named.values()), default=None)
        return None if least is None else most_layers(job, least) or None
    except InputError:  # which the launch says
        return None


class JobForm(Sectioned, OptimizerFields, DataFields):
    """Everything that is not here stays as it is in `old`; `document` is what a valid form asks for.

    dry : what a launch would meet (webapp/jobs/dry.py): of the document `old`, then of what is asked for;
        None where that gives no document.
    """

    name = forms.CharField(max_length=80)
    steps = of_job("optimizer.steps", label="Iterations")
    lr = of_job("optimizer.lr", label="Learning rate")
    clip = of_job(
        "optimizer.clip",
        label="Gradient clipping, norm",
        help_text="Largest norm of all gradients together. Leave empty to clip nothing.",
    )
    seed = of_job("optimizer.seed")
    dtype = of_job(
        "device.dtype",
        words={"bf16": "bf16, weights and sums in fp32", "fp32": "fp32", "fp64": "fp64"},
        label="Number format",
        required=False,
    )
    policy = forms.ChoiceField(choices=policy_choices(POLICIES))
    sharing = of_job(
        "strategy.sharing", label="WAN link sharing", words=SHARING, empty="As the policy does it"
    )
    contention = of_job(
        "strategy.contention",
        label="Contention",
        words={rule: contention_name(rule) for rule in (BEST, *RULES)},
        empty="As the policy does it",
        help_text="Which pipeline sends first on a shared link. The run's page names the best rule. Another "
        "policy gets the best one too, unless you change this.",
    )
    microbatches = of_job("cell.microbatches", label="Microbatches")
    micro_batch = of_job("cell.micro_batch", label="Microbatch size, sequences")
    all_reduce = of_job(
        "cell.all_reduce",
        label="All-reduce of gradients",
        words=ALL_REDUCE,
        empty="Along a ring",
        help_text="How the replicas of a stage sum. The prediction counts the links between them.",
    )
    memory_limit = Counts(
        required=False,
        label="Activation limit, microbatches",
        help_text="How many microbatches' activations a stage may hold at once. Enter one number, or one per "
        "stage. Leave empty for no limit.",
    )
    validation_every = of_job(
        "data.validation.every",
        label="Validation interval, iterations",
        required=False,
        help_text="Validates on the end of every text file, which is never trained on, or on prepared "
        "validation data. Leave empty to skip validation.",
    )
    validation_prepared = of_job(
        "data.validation.prepared",
        label="Validation data, prepared",
        max_length=500,
        validators=[absolute],
        required=False,
        help_text="Another folder of meridian data prepare, where the training data is prepared.",
    )
    vocab = vocabulary_field()
    checkpoint_dir = forms.CharField(
        label="Checkpoint location",
        max_length=500,
        required=False,
        help_text="A folder that all nodes share and open to runs, or a URL such as s3://… Leave empty to "
        "save no checkpoints.",
    )
    checkpoint_every = of_job(
        "persistence.checkpoint.every", label="Checkpoint interval, iterations", required=False
    )
    resume: Any = forms.CharField(
        label="Continue from",
        max_length=500,
        required=False,
        help_text="A checkpoint of the same model and data, or a folder of them, on any number of stages. "
        "Leave empty to begin with the first iteration.",
    )
    recoveries = of_job(
        "failures.recovery.attempts",
        label="Restarts per hour",
        required=False,
        help_text="How often per hour the run may restart after a failure. Leave empty to stop at the "
        "first failure.",
    )
    recovery_wait_s = of_job(
        "failures.recovery.wait_s",
        label="Wait for a lost machine, s",
        required=False,
        help_text="How long to wait before the run continues on fewer GPUs. Leave empty for {default} s.",
    )
    recovery_layers_per_gpu = of_job(
        "failures.recovery.layers_per_gpu",
        label="Layers per GPU, at most",
        help_text="Lets a GPU take over layers if fewer GPUs than stages are left. Leave empty to stop "
        "the run instead.",
    )
    adapt_percent = of_job(
        "failures.adapt.deviation",
        scale=100,
        whole=True,
        label="Re-plan threshold, %",
        required=False,
        help_text="Re-plan when ops or transfers differ from the plan by more than this. Leave empty to "
        "keep the schedule.",
    )
    adapt_policy = of_job(
        "failures.adapt.policy",
        words={"auto": "Automatic, a search"},
        empty="The same policy",
        label="Policy of the new plan",
        help_text="A search uses CPU time on the machine of the first rank while training runs.",
    )
    adapt_layout = of_job(
        "failures.adapt.layout",
        required=False,
        label="Move to another layout",
        help_text="With a re-plan threshold: continue with other stages, pipelines or data centres, from a "
        "checkpoint, where that gains more time than it costs. Needs restarts and checkpoints.",
    )
    adapt_most_gpus = of_job(
        "failures.adapt.most_gpus",
        required=False,
        label="Most GPUs",
        help_text="With moves to another layout: how many GPUs the run may hold in all. Those beyond its "
        "stages and pipelines wait in reserve until a move takes them. Leave empty to hold no reserve.",
    )
    tracking_tensorboard = _tracker("TensorBoard folder")
    tracking_mlflow = _tracker("MLflow folder")
    tracking_wandb = _tracker("Weights & Biases folder")
    prefill_checkpoint = forms.CharField(
        label="Model",
        max_length=500,
        required=False,
        help_text="Folder of a Hugging Face Llama model, at the same path on every node. Leave empty to "
        "sell no prefill.",
    )
    prefill_name = of_job(
        "prefill.name",
        label="Model name",
        help_text="The name that tenants use. Leave empty for the folder's name.",
    )
    prefill_latency_a_ms = of_job(
        "prefill.latency.a_ms",
        label="Latency of a chunk, a, ms",
        help_text="Latency of a chunk of n tokens on one GPU is a + b·n + c·n². meridian profile "
        "--prefill prints the three.",
    )
    prefill_latency_b_ms = of_job("prefill.latency.b_ms", label="Latency per token, b, ms")
    prefill_latency_c_ms = of_job("prefill.latency.c_ms", label="Latency per token squared, c, ms")
    prefill_chunk_tokens = of_job(
        "prefill.chunk_tokens",
        label="Smallest chunk, tokens",
        help_text="Leave empty to keep prompts whole.",
    )
    prefill_weight_budget_gb = of_job(
        "prefill.weight_budget_gb",
        label="Weight budget per GPU, GB",
        required=False,
        help_text="Leave empty for {default} GB.",
    )
    prefill_pp_degree = of_job(
        "prefill.pp_degree",
        label="GPUs per model copy",
        required=False,
        help_text="Splits the model over the same stage of this many adjacent cells; must divide the "
        "number of cells. Leave empty for {default}.",
    )
    prefill_kv_budget_gb = of_job(
        "prefill.kv_budget_gb",
        label="KV cache budget per GPU, GB",
        required=False,
        help_text="Leave empty for {default} GB.",
    )
    prefill_reserve_ms = of_job(
        "prefill.reserve_ms",
        label="Reservation window, ms",
        required=False,
        help_text="When the queue is full, still accept requests that can start within this time. Leave "
        "empty for {default}.",
    )
    priority = forms.TypedChoiceField(
        choices=Priority.choices,
        coerce=int,
        empty_value=str(Priority.NORMAL.value),
        initial=Priority.NORMAL.value,
        required=False,
        help_text="Which of the team's queued runs get GPUs first.",
    )
    idempotency_key = forms.CharField(max_length=64, required=False, widget=forms.HiddenInput)

    layout = [
        ("Run", "", ["name", "steps", "priority"]),
        (DATA, "Read by the nodes", [*PATH_OF, "vocab"]),
        (
            "Training",
            "",
            [
                *("lr", "clip", "seed", "dtype", "microbatches", "micro_batch"),
                *("validation_every", "validation_prepared"),
            ],
        ),
        ("Optimizer", "AdamW", list(OPTIMIZER)),
        (
            "Schedule",
            "",
            ["policy", "sharing", "contention", "all_reduce", "memory_limit", *ADAPT],
        ),
        ("Checkpoints", "", ["checkpoint_dir", "checkpoint_every", "resume"]),
        ("Failures", "", ["recoveries", *RECOVERY.values()]),
        ("Trackers", "", [f"tracking_{name}" for name in TRACKERS]),
        (
            "Prefill",
            "Serve tenants' prompts in the bubbles of this run",
            [_prefill_field(path) for path in PREFILL],
        ),
    ]
    FOLDED: ClassVar = {title: title for title, _, _ in layout[2:]}
    ALONE: ClassVar = ("resume",)
    FIELD_OF: ClassVar = {
        "recovery": "recoveries",
        "adapt": "adapt_percent",
        "layout": "adapt_layout",
        "most_gpus": "adapt_most_gpus",
        "prefill": "prefill_checkpoint",
        **{name: f"tracking_{name}" for name in TRACKERS},
        "files": "data",
    }
    KEEPS_RULE: ClassVar = False  # a job that names no rule of contention goes on as it was
    CHANGED: tuple[str, ...] = (
        "steps",
        *PATH_OF,
        "vocab",
        "lr",
        "clip",
        "seed",
        "policy",
        "sharing",
        "all_reduce",
        "contention",
        "microbatches",
        "micro_batch",
        "memory_limit",
    )

    def __init__(
        self,
        data: Any = None,
        *,
        document: dict[str, Any],
        team: Team,
        gpu_of_rank: GpuOfRank = (),
        initial: dict[str, Any] | None = None,
        planned: dict[str, Any] | None = None,
    ) -> None:
        old = parse(TrainJob, document)
        shown = {name: PATHS[name] for name in self.CHANGED if name in PATHS} | IN_SECTIONS
        values = {name: _of_job(old, path) for name, path in shown.items()}
        values |= {name: value_at(document, path) for name, path in FILES.items()}
        values |= optimizer_values(old)
        values["all_reduce"] = value_at(document, "cell.all_reduce", "").replace("ring", "")
        recovery, adapt = value_at(document, "failures.recovery", {}), old.failures.adapt
        values |= {field: recovery.get(name) for name, field in RECOVERY.items()}
        values["adapt_percent"] = round(100 * adapt.deviation) if adapt else None
        values["adapt_policy"] = (
            value_at(document, "failures.adapt", {}).get("policy", "").replace("same", "")
        )
        prefill = document.get("prefill") or {}
        values |= {_prefill_field(path): value_at(prefill, path) for path in PREFILL}
        if not (old.swap_strategy or old.pipeline_strategy.schedule or self.KEEPS_RULE):
            values["contention"] = values["contention"] or BEST
        super().__init__(data, initial={**values, **(initial or {})})
        if isinstance(old.data.path, dict):  # one path for each data centre, which stay as they are
            del self.fields["data"], self.fields["prepared"]
        for name in self.absent(old.model):
            del self.fields[name]
        self.old, self.team, self.gpu_of_rank, self._planned = document, team, gpu_of_rank, planned
        self.dry = None if self.is_bound else self._dry(document)
        self._offer_layers(document)

    def absent(self, model: TrainModel | ConfigModel) -> tuple[str, ...]:
        """Fields that a job of this model has not: a config has its vocabulary, a shape no weights."""
        return ("vocab",) if isinstance(model, ConfigModel) else ("init",)

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not self.errors:
            try:
                self.document = self._document(cleaned)
                self._refuse_too_many_layers()
                self._refuse_what_cannot_run()
            except InputError as error:
                self.take_input_error(error)
        return cleaned

    def _offer_layers(self, document: dict[str, Any]) -> None:
        """How many layers fit into a GPU, where that is known; a new job is offered them."""
        field = self.fields.get("recovery_layers_per_gpu")
        most = _most_layers(document, self.team) if field else None
        if field is None or most is None:
            return
        field.help_text = f"{field.help_text} At most {most} fit."
        if not value_at(document, "failures.recovery"):
            self.initial["recovery_layers_per_gpu"] = most

    def _refuse_too_many_layers(self) -> None:
        layers = self.cleaned_data.get("recovery_layers_per_gpu")
        if not (self.cleaned_data.get("recoveries") and layers):
            return
        most = _most_layers(self.document, self.team)
        if most is not None and layers > most:
            raise InputError(
                "failures.recovery.layers_per_gpu", layers, f"at most {most} fit into its memory"
            )

    def _dry(self, document: dict[str, Any]) -> dict[str, Any]:
        return dry_run_document(document, self.team, gpu_of_rank=self.gpu_of_rank, planned=self._planned)

    def _refuse_what_cannot_run(self) -> None:
        """Errors for what stands in the way for good; a launch says at which field a schedule fails."""
        self.dry = self._dry(self.document)
        for check in self.dry["checks"]:
            if check["ok"] or not check["blocks"] or check["name"] == "Document":
                continue
            changed = [name for name in NEEDS_MEMORY if name in self.changed_data]
            if check["name"] == "Memory" and changed:
                self.add_error(changed[0], check["text"])
            else:
                self.add_error(None, f"{check['name']}: {check['text']}")

    def _document(self, cleaned: dict[str, Any]) -> dict[str, Any]:
        document = with_optimizer(self.old, cleaned)
        if "policy" in cleaned and cleaned["policy"] != document["strategy"]["policy"]:
            document = changed(document, {PATHS[name]: value for name, value in POLICY_RULES.items()})
        values = {
            {**PATHS, **FILES}[name]: cleaned[name] if cleaned[name] != "" else None
            for name in self.CHANGED
            if name in self.fields
        }
        if "policy" in self.changed_data and "contention" not in self.changed_data:
            values[PATHS["contention"]] = BEST
        values |= self._checkpoints(cleaned)
        values["data.validation"] = self._validation(cleaned)
        values["failures.recovery"] = self._recovery(cleaned)
        values["failures.adapt"] = self._adapt(cleaned)
        values |= {f"tracking.{name}": cleaned[f"tracking_{name}"] or None for name in TRACKERS}
        values["prefill"] = self._prefill(cleaned)
        if cleaned["dtype"] not in ("", value_at(document, "device.dtype", DeviceSection().dtype)):
            values["device.dtype"] = cleaned["dtype"]
        document = changed(document, values)
        if any(_for_schedule(document, path) != _for_schedule(self.old, path) for path in SCHEDULE_IS_OF):
            document = changed(document, {"strategy.schedule": None})
        site_job(document)
        return document

    def _validation(self, cleaned: dict[str, Any]) -> dict[str, Any] | None:
        every, folder = (cleaned.get(f"validation_{name}") for name in ("every", "prepared"))
        if folder and not every:
            raise InputError("validation_every", every, "enter the validation interval in iterations")
        held_out = value_at(self.old, "data.validation", {})
        return _with(held_out, {"every": every, "prepared": folder}) if every else None

    def _recovery(self, cleaned: dict[str, Any]) -> dict[str, Any] | None:
        if not cleaned.get("recoveries"):
            return None
        values = {"attempts": cleaned["recoveries"]} | {n: cleaned[field] for n, field in RECOVERY.items()}
        return _with(value_at(self.old, "failures.recovery", {}), values)

    def _adapt(self, cleaned: dict[str, Any]) -> dict[str, Any] | None:
        if not cleaned.get("adapt_percent"):
            return None
        values = {
            "deviation": cleaned["adapt_percent"] / 100,
            "policy": cleaned["adapt_policy"],
            "layout": cleaned["adapt_layout"] or None,
            "most_gpus": cleaned["adapt_most_gpus"],
        }
        return _with(value_at(self.old, "failures.adapt", {}), values)

    def _prefill(self, cleaned: dict[str, Any]) -> dict[str, Any] | None:
        """The section as it was with what the form says; nothing of it where no model is named."""
        settings = dict(self.old.get("prefill") or {})
        if not cleaned.get("prefill_checkpoint"):
            return None
        latency = dict(settings.pop("latency", None) or {})
        for path in PREFILL:
            part, name = (latency, path.partition(".")[2]) if "." in path else (settings, path)
            value = cleaned[_prefill_field(path)]
            part.pop(name, None)
            if value not in (None, ""):
                part[name] = value
        if latency.keys() & {"a_ms", "b_ms", "c_ms"}:
            latency.pop("points", None)
        return {**settings, "latency": latency}

    def _checkpoints(self, cleaned: dict[str, Any]) -> dict[str, Any]:
        """What the form says of the section `persistence`, by path."""
        where, every = cleaned["checkpoint_dir"], cleaned["checkpoint_every"]
        if where and not every:
            raise InputError("checkpoint_every", every, "enter the checkpoint interval in iterations")
        settings = value_at(self.old, "persistence.checkpoint", {})
        saves = {**settings, "dir": where, "every": every} if where else None
        return {"persistence.checkpoint": saves, "persistence.resume": cleaned["resume"] or None}

    def take_input_error(self, error: InputError) -> None:
        """Fields have the names of the document's, without the section."""
        section, _, field = error.field.partition(".")
        inside = section in SECTIONS and field
        super().take_input_error(InputError(field, error.value, error.allowed) if inside else error)
