"""The form of the Schedules page: a scenario, the policies to compare, and perhaps a parameter to sweep."""

import itertools
from functools import partial
from typing import Any, ClassVar

from django import forms

from engine.errors import InputError
from engine.inputs import parse
from engine.schedule.contention import RULES, contention_name
from engine.schedule.registry import SEARCHING
from engine.schedule.scenario import BEST, MOST_STAGES, POLICIES, Scenario
from engine.simulate import SweepDocument
from webapp.accounts.forms import ForTeam
from webapp.common.document_fields import document_field
from webapp.common.formkit import Sectioned, policy_choices
from webapp.common.number_lists import Counts, Numbers, one_or_many
from webapp.computations.models import ComputationKind

of_scenario = partial(document_field, Scenario)
# What one computation may take in all: policies that search × their limit × values.
MOST_SEARCH_S = 1800
MOST_POINTS = 200
MOST_LIMIT_S = 600
MOST_PIPELINES, MOST_MICROBATCHES = 1024, 100_000
SWEPT = (
    "microbatches",
    "pipelines",
    "wan.latency",
    "wan.transfer",
    "lan.transfer",
    "memory_limit",
    "full_limit",
    "times.forward",
    "times.backward",
    "times.recompute",
    "jitter",
)


class ScheduleForm(Sectioned, ForTeam):
    """`scenario` and `computation` hold the engine's documents once the form is valid."""

    name = forms.CharField(max_length=80)
    policies = forms.MultipleChoiceField(
        choices=policy_choices(POLICIES),
        widget=forms.CheckboxSelectMultiple,
        error_messages={"required": "Choose at least one policy."},
    )
    stages_per_dc = Numbers(
        label="Stages per data centre",
        whole=True,
        initial=[2, 2, 2],
        help_text="In pipeline order. Enter one number for a single data centre.",
    )
    pipelines = of_scenario("pipelines", initial=2, most=MOST_PIPELINES)
    microbatches = of_scenario("microbatches", initial=4, most=MOST_MICROBATCHES)
    unit = forms.ChoiceField(choices=[("slot", "abstract slots"), ("ms", "milliseconds")], label="Time unit")
    forward = Numbers(initial=[1], help_text="One number, or one per stage.")
    backward = Numbers(initial=[2])
    recompute = Numbers(initial=[1], required=False)
    weight = Numbers(
        label="Weight gradient (W)", required=False, help_text="Leave empty to keep the backward pass whole."
    )
    wan_latency = Numbers(
        label="WAN latency",
        initial=[0],
        required=False,
        help_text="One way. Enter one number, or one per hop.",
    )
    wan_transfer = Numbers(
        label="WAN transfer",
        initial=[2],
        required=False,
        help_text="One microbatch over one pipeline's share of the link.",
    )
    lan_latency = Numbers(
        label="LAN latency", required=False, help_text="Enter one number, or one per data centre."
    )
    lan_transfer = Numbers(
        label="LAN transfer",
        required=False,
        help_text="One microbatch between two nodes. Shared messages cross it before and behind the WAN.",
    )
    sharing = of_scenario(
        "sharing",
        words={"spatial": "spatial", "temporal": "temporal"},
        empty="as the policy does it",
        label="WAN sharing",
    )
    contention = of_scenario(
        "contention",
        words={rule: contention_name(rule) for rule in (BEST, *RULES)},
        label="Contention",
        initial=BEST,
        required=False,
        help_text="Which pipeline sends first on a shared link. The best rule is named in the answer.",
    )
    sends = of_scenario(
        "sends",
        words={"overlapped": "overlapped", "blocking": "blocking"},
        label="Sends",
        initial="overlapped",
        required=False,
        help_text="A blocking send holds its GPU until the message has arrived.",
    )
    recompute_rule = of_scenario(
        "recompute_rule",
        words={
            "jit": "just in time",
            "idle": "if no forward pass can run",
            "late": "once the gradient is there",
            "blocking": "just in time, then only its backward pass",
        },
        empty="as the policy does it",
        label="Recomputation runs",
    )
    memory_limit = Counts(
        required=False,
        label="Activation limit, microbatches",
        help_text="One number, or one per stage. Leave empty for no limit.",
    )
    full_limit = Counts(required=False, label="Full activation limit, microbatches")
    jitter = of_scenario(
        "jitter",
        required=False,
        label="Jitter",
        help_text="Coefficient of variation of op and transfer times, such as 0.1.",
    )
    seed = of_scenario("seed", initial=0, required=False)
    time_limit_s = of_scenario(
        "time_limit_s",
        label="Time limit per search, s",
        most=MOST_LIMIT_S,
        initial=30,
        required=False,
        help_text="For the policies that search: Optimal and Automatic.",
    )
    parameter = forms.ChoiceField(
        choices=[("", "nothing"), *((name, name) for name in SWEPT)], required=False, label="Sweep"
    )
    values = Numbers(required=False, label="Values", help_text="Such as 0, 1, 2, 4, 8.")

    layout = [
        ("Comparison", "", ["team", "name", "policies"]),
        ("Cell", "", ["stages_per_dc", "pipelines", "microbatches"]),
        (
            "Times",
            "Of one microbatch on one stage",
            ["unit", "forward", "recompute", "recompute_rule", "backward", "weight"],
        ),
        (
            "Links",
            "",
            ["wan_latency", "wan_transfer", "lan_latency", "lan_transfer", "sharing", "contention", "sends"],
        ),
        ("Limits", "Of each stage", ["memory_limit", "full_limit"]),
        ("Search and variation", "", ["time_limit_s", "jitter", "seed"]),
        ("Sweep", "Vary one parameter, with every policy chosen above", ["parameter", "values"]),
    ]

    FIELD_OF: ClassVar = {
        "dc_of_stage": "stages_per_dc",
        "stages": "stages_per_dc",
        "wan": "wan_transfer",
        "lan": "lan_transfer",
    }

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if cleaned.get("parameter") and not cleaned.get("values") and "values" not in self.errors:
            self.add_error("values", "Enter the values of the parameter.")
        if len(cleaned.get("values") or []) > MOST_POINTS:
            self.add_error("values", f"Enter at most {MOST_POINTS} values.")
        if not self.errors:
            self._bound_search(cleaned)
            self._compose(cleaned)
        return cleaned

    def _bound_search(self, cleaned: dict[str, Any]) -> None:
        searching = sum(policy in SEARCHING for policy in cleaned["policies"])
        points = len(cleaned["values"]) if cleaned.get("parameter") else 1
        limit_s = cleaned.get("time_limit_s") or 30
        asked_s = searching * points * limit_s
        if asked_s > MOST_SEARCH_S:
            self.add_error(
                "time_limit_s",
                f"{searching} searches for {points} values each may take {asked_s:g} s. Allowed are "
                f"{MOST_SEARCH_S} s: lower the limit, or choose fewer policies or values.",
            )

    def _compose(self, cleaned: dict[str, Any]) -> None:
        try:
            self.scenario = scenario_document(cleaned)
            parse(Scenario, {**self.scenario, "policy": cleaned["policies"][0]})
            self.kind, self.computation = self._question(cleaned)
        except InputError as error:
            self.take_input_error(error)

    def _question(self, cleaned: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        if not cleaned.get("parameter"):
            question = {
                "scenario": self.scenario,
                "policies": cleaned["policies"],
                "unit": cleaned["unit"],
            }
            return ComputationKind.SCHEDULES, question
        document = {
            "scenario": self.scenario,
            "parameter": cleaned["parameter"],
            "values": cleaned["values"],
            "policies": cleaned["policies"],
        }
        parse(SweepDocument, document)
        return ComputationKind.SWEEP, document


def scenario_document(cleaned: dict[str, Any]) -> dict[str, Any]:
    """The document of `meridian simulate`, without a policy, that the form's values mean."""
    counts = cleaned["stages_per_dc"]
    if not counts or min(counts) < 1:
        raise InputError("stages_per_dc", counts, "at least one stage in each data centre")
    if sum(counts) > MOST_STAGES:
        raise InputError("stages_per_dc", sum(counts), f"at most {MOST_STAGES:,} stages in all")
    dcs = [dc for dc, count in enumerate(counts) for _ in range(count)]
    kinds = ("forward", "backward", "recompute", "weight")
    document: dict[str, Any] = {
        "stages": len(dcs),
        "dc_of_stage": dcs,
        "pipelines": cleaned["pipelines"],
        "microbatches": cleaned["microbatches"],
        "times": {kind: value for kind in kinds if (value := one_or_many(cleaned.get(kind))) is not None},
        "wan": _links("wan", cleaned, len(counts) - 1, "WAN hop"),
    }
    has_lan = cleaned.get("lan_latency") or cleaned.get("lan_transfer")
    lan = _links("lan", cleaned, len(counts), "data centre") if has_lan else None
    optional = {"lan": lan, **{name: cleaned.get(name) for name in _OPTIONAL}}
    return {**document, **{name: value for name, value in optional.items() if value}}


_OPTIONAL = (
    "sharing",
    "contention",
    "sends",
    "recompute_rule",
    "memory_limit",
    "full_limit",
    "jitter",
    "seed",
    "time_limit_s",
)


def _links(kind: str, cleaned: dict[str, Any], count: int, each: str) -> Any:
    """One link, or a list of `count` where one of its figures has a number for each."""
    names = f"{kind}_latency", f"{kind}_transfer"
    latency, transfer = (cleaned.get(name) or [0.0] for name in names)
    most = max(len(latency), len(transfer))
    if most == 1:
        return {"latency": latency[0], "transfer": transfer[0]}
    for name, values in zip(names, (latency, transfer), strict=True):
        if len(values) not in (1, count):
            raise InputError(name, values, f"one number, or one per {each}: {count} expected")
    spread = [values * count if len(values) == 1 else values for values in (latency, transfer)]
    return [{"latency": a, "transfer": b} for a, b in zip(*spread, strict=True)]


def initial_of_scenario(document: dict[str, Any]) -> dict[str, Any]:
    """The form's values for a scenario document: the inverse of `scenario_document`."""
    dcs = document.get("dc_of_stage") or [0] * document["stages"]
    parts = [(dc, len(list(stages))) for dc, stages in itertools.groupby(dcs)]
    wan, lan, times = document.get("wan") or {}, document.get("lan") or {}, document["times"]
    hops = wan if isinstance(wan, list) else [wan]
    lans = [lan[dc] for dc, _ in parts] if isinstance(lan, list) else [lan] if lan else []
    return {
        "stages_per_dc": [count for _, count in parts],
        **{
            name: document.get(name) for name in ("pipelines", "microbatches", *_OPTIONAL) if name in document
        },
        **{kind: _numbers(times.get(kind)) for kind in ("forward", "backward", "recompute", "weight")},
        "wan_latency": _same([hop.get("latency", 0) for hop in hops]),
        "wan_transfer": _same([hop.get("transfer", 0) for hop in hops]),
        "lan_latency": _same([link.get("latency", 0) for link in lans]) or None,
        "lan_transfer": _same([link.get("transfer", 0) for link in lans]) or None,
    }


def _numbers(value: Any) -> list[float] | None:
    return None if value is None else _same(value if isinstance(value, list) else [value])


def _same(values: list[float]) -> list[float]:
    return values[:1] if len(set(values)) <= 1 else values
