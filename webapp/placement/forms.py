"""The form of the Placement page: where devices come from, what a job sends over their links, the search."""

from functools import partial
from typing import Any

from django import forms

from engine.errors import InputError
from engine.inputs import parse
from engine.model.hugging_face import read_config
from engine.model.presets import PER_STAGE, PRESETS, preset
from engine.plan.placement import scenarios
from engine.plan.placement.request import MOST_BATCH, PlacementRequest, traffic_of
from webapp.accounts.forms import ForTeam
from webapp.common.document_fields import document_field
from webapp.common.formkit import Sectioned
from webapp.common.uploads import given_document
from webapp.inventory.models import DataCenter
from webapp.placement.network import AWS, Network, network_from, of_inventory, of_regions
from webapp.placement.options import gpus_of, key_of, placed_plan
from webapp.planning.model_fields import CONFIG_CHOICE, ModelFields, model_values
from webapp.planning.model_fields import FIELDS as MODEL_FIELDS
from webapp.planning.models import Plan

of_placement = partial(document_field, PlacementRequest)
# What a page computes and keeps; the command has no such limits.
MOST_DEVICES = 1024
MOST_DOCUMENT_BYTES = 8_000_000
REGIONS = tuple(sorted({name for pair in scenarios.aws_regions() for name in pair}))
SOURCES = {
    "inventory": "The inventory",
    "regions": "The ten regions of DT-FM",
    "case": "A case of DT-FM §4",
    "document": "A document",
}
SOURCE_WORDS = {
    "inventory": "the inventory",
    "regions": "DT-FM’s regions",
    "case": "a case of DT-FM §4",
    "document": "a document",
}
OF_NETWORKS = ("inventory", "regions")  # sources whose traffic the form says
MODELS = [name for name in PRESETS if name not in PER_STAGE]


# Of the values, those that do not fill the form in again.
NOT_KEPT = ("team", "file", "config_file", "datacenters", "idempotency_key")


class PlacementForm(Sectioned, ModelFields, ForTeam):
    """`question` holds what the computation reads once the form is valid (see `document_of`)."""

    name = forms.CharField(max_length=80)
    source = forms.ChoiceField(choices=list(SOURCES.items()), label="Source of devices")
    datacenters = forms.ModelMultipleChoiceField(
        DataCenter.objects.none(), label="Data centres", required=False, widget=forms.CheckboxSelectMultiple
    )
    device = forms.ChoiceField(choices=[("gpu", "a GPU"), ("node", "a node")], label="Device", required=False)
    regions = forms.MultipleChoiceField(
        choices=[(name, name) for name in REGIONS if name in AWS],
        required=False,
        widget=forms.CheckboxSelectMultiple,
        initial=list(REGIONS),
    )
    each = forms.IntegerField(
        label="Devices per region", min_value=1, max_value=512, required=False, initial=8
    )
    case = forms.ChoiceField(
        choices=[(name, scenarios.case(name).title) for name in scenarios.names()],
        required=False,
        initial="worldwide",
    )
    document = forms.CharField(
        widget=forms.Textarea(attrs={"rows": 8, "spellcheck": "false"}),
        required=False,
        label="Document",
        help_text="JSON or YAML, in the format of meridian place.",
    )
    file = forms.FileField(required=False, label="Document file")
    stages = of_placement("stages", most=MOST_DEVICES, required=False, initial=4)
    data_parallel = of_placement(
        "data_parallel",
        label="Pipelines",
        most=MOST_DEVICES,
        required=False,
        help_text="Leave empty to use all devices.",
    )
    model = forms.ChoiceField(
        choices=[("", "bytes entered below"), *((name, name) for name in MODELS), CONFIG_CHOICE],
        required=False,
        initial="llama-3-8b",
    )
    batch = forms.IntegerField(
        min_value=1,
        max_value=MOST_BATCH,
        required=False,
        initial=1024,
        help_text="Sequences per iteration, all pipelines together.",
    )
    dp_bytes = of_placement(
        "dp_bytes",
        label="Gradients per stage, bytes",
        required=False,
        help_text="Leave empty to compute it from the model in fp16.",
    )
    pp_bytes = of_placement(
        "pp_bytes",
        label="Pipeline traffic per hop, bytes",
        required=False,
        help_text="Per iteration, in one direction. Leave empty to compute it from the model.",
    )
    seed = of_placement("seed", required=False, initial=0)
    evaluations = of_placement("evaluations", help_text="How many partitions the search may evaluate.")
    baselines = forms.BooleanField(
        required=False,
        initial=True,
        label="Compare with random placement, Kernighan–Lin and a genetic algorithm",
    )

    # The plan and its option whose GPUs are placed, where it is of one.
    plan = forms.IntegerField(min_value=1, required=False, widget=forms.HiddenInput)
    option = forms.IntegerField(min_value=0, required=False, widget=forms.HiddenInput)

    layout = [
        ("Placement", "", ["team", "name"]),
        (
            "Devices",
            "Including the links between them",
            [
                "source",
                "datacenters",
                "device",
                "regions",
                "each",
                "case",
                "document",
                "file",
            ],
        ),
        ("Grid", "Stages × pipelines must equal the number of devices", ["stages", "data_parallel"]),
        ("Traffic", "", [*MODEL_FIELDS, "batch", "dp_bytes", "pp_bytes"]),
        ("Search", "", ["evaluations", "seed", "baselines"]),
    ]

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, user=user, **kwargs)
        self.fields["datacenters"].queryset = DataCenter.objects.visible_to(user)  # type: ignore[attr-defined]
        values = {name: self[name].value() for name in ("plan", "option")}
        self.placed = placed_plan({"asked": values}, Plan.objects.visible_to(user).select_related("team"))
        if self.placed:
            plan, option = self.placed
            gpus = ", ".join(f"{name} {count:,}" for name, count in option["gpus_used"].items())
            help_text = f"At most the GPUs of D = {option['dp_cells']} in {plan}: {gpus}."
            self.fields["datacenters"].help_text = help_text
            self.fields["device"].choices = [("gpu", "a GPU")]  # type: ignore[attr-defined]

    @property
    def plan_of_team(self) -> Plan | None:
        """The plan that is placed, where the placement is of its team."""
        plan = self.placed[0] if self.placed else None
        return plan if plan is not None and plan.team == self.cleaned_data["team"] else None

    def needs_model(self, cleaned: dict[str, Any]) -> bool:
        return cleaned.get("source") in OF_NETWORKS

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        chosen, team = cleaned.get("datacenters"), cleaned.get("team")
        if chosen and team and any(dc.team_id != team.pk for dc in chosen):
            self.add_error("datacenters", f"Choose data centres of team {team} only.")
        if not self.errors:
            try:
                question = self._question(cleaned)
                request = parse(PlacementRequest, document_of(question))
                self.question = {**question, "grid": [request.stages, request.data_parallel]}
            except InputError as error:
                self.take_input_error(error)
        return cleaned

    def take_input_error(self, error: InputError) -> None:
        """The engine's refusal of a document stands at the document, with the field's name."""
        if self.cleaned_data.get("source") == "document":
            at = "file" if self.cleaned_data.get("file") else "document"
            self.add_error(at, str(error))
        else:
            super().take_input_error(error)

    def _question(self, values: dict[str, Any]) -> dict[str, Any]:
        entered = {name: values[name] for name in self.fields if name not in NOT_KEPT}
        entered["datacenters"] = [dc.pk for dc in values["datacenters"]]
        entered |= model_values(values["model"])
        question = {"asked": entered, "baselines": values["baselines"], "source": values["source"]}
        if values["source"] == "document":
            entered["document"] = ""
            return question | {"document": self._given(values), "network": None}
        rules = {name: values[name] for name in ("seed", "evaluations") if values[name] is not None}
        if values["source"] == "case":
            return question | {"document": {"scenario": values["case"], **rules}, "network": None}
        network = self._network(values)
        grid = _grid(values, network.devices)
        surplus = network.devices - grid["stages"] * grid["data_parallel"]
        if self.placed and values["source"] == "inventory" and _is_whole(self.placed[1], grid):
            question["of"] = key_of(self.placed[1])
        return question | {
            "document": {**grid, **_traffic(values, grid), **rules},
            "network": network.without(surplus).as_dict(),
        }

    def _given(self, values: dict[str, Any]) -> dict[str, Any]:
        document = given_document(
            values["file"], values["document"], field="document", most_bytes=MOST_DOCUMENT_BYTES
        )
        devices = parse(PlacementRequest, document).devices
        if devices > MOST_DEVICES:
            raise InputError("latency_ms", f"{devices} rows", f"at most {MOST_DEVICES} devices on this page")
        return document

    def _network(self, values: dict[str, Any]) -> Network:
        if values["source"] == "regions":
            if not values["regions"] or not values["each"]:
                name = "each" if values["regions"] else "regions"
                raise InputError(name, None, "required if the devices come from the regions")
            network = of_regions(values["regions"], values["each"])
        else:
            if not values["datacenters"]:
                raise InputError("datacenters", None, "choose at least one data centre")
            most = {pool.pk: count for pool, count in gpus_of(*self.placed).items()} if self.placed else None
            network = of_inventory(list(values["datacenters"]), values["device"] or "gpu", most)
        if network.devices > MOST_DEVICES:
            name = "each" if values["source"] == "regions" else "datacenters"
            raise InputError(name, network.devices, f"at most {MOST_DEVICES} devices on this page")
        return network


def _grid(values: dict[str, Any], devices: int) -> dict[str, int]:
    """Stages and pipelines; devices that fill no whole pipeline are left out where pipelines are given."""
    stages, pipelines = values["stages"], values["data_parallel"]
    if not stages:
        raise InputError("stages", None, "required")
    if pipelines is None:
        if devices % stages:
            fits = [n for n in range(1, devices + 1) if devices % n == 0]
            allowed = (
                f"must divide {devices} devices ({', '.join(map(str, fits[:12]))}), or give the pipelines"
            )
            raise InputError("stages", stages, allowed)
        pipelines = devices // stages
    if stages * pipelines > devices:
        allowed = (
            f"{stages} stages × {pipelines} pipelines need {stages * pipelines} devices; there are {devices}"
        )
        raise InputError("data_parallel", pipelines, allowed)
    return {"stages": stages, "data_parallel": pipelines}


def _is_whole(option: dict[str, Any], grid: dict[str, int]) -> bool:
    """Whether the stages and pipelines placed are those of the plan's option."""
    stages = sum(part["stages"] for part in option["partitions"])
    return grid == {"stages": stages, "data_parallel": option["pipelines"]}


def _traffic(values: dict[str, Any], grid: dict[str, int]) -> dict[str, float]:
    """c_DP and c_PP as given, else of the model: fp16 gradients of a stage, activations of a pipeline."""
    traffic = {name: values[name] for name in ("dp_bytes", "pp_bytes") if values[name] is not None}
    if len(traffic) == 2:
        return traffic
    if not values["model"]:
        missing = "dp_bytes" if "dp_bytes" not in traffic else "pp_bytes"
        raise InputError(missing, None, "enter the bytes, or a model to compute them from")
    model = values["model"]
    shape = read_config(model).shape if isinstance(model, dict) else preset(model, stages=grid["stages"])
    return traffic_of(shape, values["batch"] or 1, **grid) | traffic


def document_of(question: dict[str, Any]) -> dict[str, Any]:
    """The document of `meridian place` that a kept question means; matrices of a network are numpy's."""
    if question["network"] is None:
        return dict(question["document"])
    latency, bandwidth = network_from(question["network"]).matrices()
    return {"latency_ms": latency, "bandwidth_gbps": bandwidth, **question["document"]}
