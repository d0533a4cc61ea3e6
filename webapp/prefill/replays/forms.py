"""The form of a replay: a trace of requests, bubbles, and the loads and orders that are tried."""

from functools import partial
from typing import Any

from django import forms
from django.core.exceptions import ValidationError

from engine.errors import InputError
from engine.inputs import parse, whole
from engine.prefill.profiles import shipped
from engine.prefill.request import ReplayRequest
from engine.prefill.trace import SHIPPED, require_trace
from webapp.accounts.forms import ForTeam
from webapp.common.document_fields import document_field
from webapp.common.formkit import Sectioned
from webapp.common.number_lists import Numbers
from webapp.prefill.replays.sources import (
    CELL,
    UPLOAD,
    bubble_choices,
    bubbles_named,
    bubbles_of,
    label_of,
    trace_choices,
)

of_document = partial(document_field, ReplayRequest)
MOST_LOADS, MOST_LOAD = 12, 1_000_000
# Of one replay in a computation: with both orders and all loads some minutes.
MOST_REQUESTS = 100_000
MOST_CELLS = 100
LOOKED_AT = 4096  # of an upload, to say at once that it is no trace
LONGEST_NAME = 120
ORDERS = {"fifo": "first come, first served", "longest_fit": "longest that fits first"}
OWN = "own"
DOCUMENT = ("requests", "too_long", "cells", "phase", "pp_degree", "lan_gbps", "kv_bytes_per_token")
CONTROLLER = ("queue", "reserve_ms", "ttft_slo_ms", "guard_ms", "chunk_tokens", "kv_budget_gb")
NOT_AGAIN = ("team", "file", "idempotency_key")  # of the values that a copy begins with
PROFILES = {f"{p.model}:{p.gpu}:{p.tensor_parallel}": p for p in shipped()}


def _profile_choices() -> list[tuple[str, str]]:
    choices = [
        (
            key,
            f"{p.model} on {p.tensor_parallel} {p.gpu}" if p.tensor_parallel > 1 else f"{p.model} on {p.gpu}",
        )
        for key, p in PROFILES.items()
    ]
    return [*choices, (OWN, "a, b and c, entered below")]


class ReplayForm(Sectioned, ForTeam):
    """`document` holds the engine's document, without trace, load and order, once the form is valid."""

    name = forms.CharField(max_length=80, initial="Replay")
    trace = forms.ChoiceField(label="Trace of requests", initial="azure-code")
    file = forms.FileField(
        required=False,
        help_text="CSV with TIMESTAMP, ContextTokens and GeneratedTokens (Azure), BurstGPT's CSV, or "
        "Mooncake's JSON lines.",
    )
    requests = of_document(
        "requests",
        required=True,
        initial=20_000,
        most=MOST_REQUESTS,
        help_text="A shorter trace is repeated.",
    )
    too_long = of_document(
        "too_long",
        words={"drop": "are refused", "clip": "are cut to what fits"},
        label="Prompts that no bubble could hold",
    )
    bubbles = forms.ChoiceField(initial=CELL)
    slot_ms = of_document(
        "bubbles.slot_ms", label="Slot, ms", help_text="Only for a comparison whose times are in slots."
    )
    cells = of_document("cells", most=MOST_CELLS, help_text="So many times these GPUs.")
    phase = of_document(
        "phase", words={"in": "in phase", "out": "one after another"}, label="Iterations of cells begin"
    )
    loads = Numbers(
        initial=[10, 50, 100, 200],
        most=MOST_LOADS,
        help_text="How many times as fast as in the trace the requests arrive.",
    )
    orders = forms.MultipleChoiceField(
        choices=list(ORDERS.items()),
        initial=list(ORDERS),
        widget=forms.CheckboxSelectMultiple,
        label="Orders of the queue",
        error_messages={"required": "Choose at least one order."},
    )
    queue = of_document("controller.queue", initial=64, help_text="Most requests that wait.")
    reserve_ms = of_document(
        "controller.reserve_ms",
        label="Reservation window, ms",
        help_text="When the queue is full, still accept requests that can start within this time.",
    )
    ttft_slo_ms = of_document(
        "controller.ttft_slo_ms",
        initial=2000,
        label="TTFT objective, ms",
        help_text="Requests that would be later are refused. Leave empty for none.",
    )
    guard_ms = of_document("controller.guard_ms", label="Guard before training ops, ms")
    chunk_tokens = of_document(
        "controller.chunk_tokens",
        initial=128,
        label="Least tokens of a chunk",
        help_text="Leave empty to run each prompt in one piece.",
    )
    kv_budget_gb = of_document(
        "controller.kv_budget_gb", label="KV budget of a GPU, GB", help_text="Leave empty for none."
    )
    profile = forms.ChoiceField(
        choices=_profile_choices, initial="llama-3-8b:a100-80g:1", label="Prefill times"
    )
    a_ms = of_document("profile.a_ms", label="a, ms", help_text="t = a + b·s + c·s² for s tokens.")
    b_ms = of_document("profile.b_ms", label="b, ms per token")
    c_ms = of_document("profile.c_ms", label="c, ms per token²")
    pp_degree = of_document("pp_degree", label="GPUs per prompt", help_text="Divides the number of cells.")
    lan_gbps = of_document("lan_gbps", label="Link to the decode GPU, Gbit/s")
    kv_bytes_per_token = of_document("kv_bytes_per_token", label="KV cache, bytes per token")

    layout = [
        ("Replay", "", ["team", "name"]),
        ("Requests", "", ["trace", "file", "requests", "too_long"]),
        ("Bubbles", "", ["bubbles", "slot_ms", "cells", "phase"]),
        ("What is tried", "Each load in each order", ["loads", "orders"]),
        (
            "Controller",
            "",
            ["queue", "reserve_ms", "ttft_slo_ms", "guard_ms", "chunk_tokens", "kv_budget_gb"],
        ),
        (
            "Model",
            "",
            ["profile", "a_ms", "b_ms", "c_ms", "pp_degree", "lan_gbps", "kv_bytes_per_token"],
        ),
    ]

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, user=user, **kwargs)
        self.user = user
        self.document: dict[str, Any] = {}
        for name, choices in (("trace", trace_choices(user)), ("bubbles", bubble_choices(user))):
            field: Any = self.fields[name]
            field.choices = choices

    def clean_file(self) -> Any:
        file = self.cleaned_data["file"]
        if file is None:
            return None
        if len(str(file.name).encode()) > LONGEST_NAME:
            raise ValidationError(f"A file's name may have at most {LONGEST_NAME} bytes.")
        first = file.read(LOOKED_AT).decode("utf-8-sig", errors="replace").lstrip().partition("\n")[0]
        file.seek(0)
        try:
            require_trace(first)
        except InputError as error:
            raise ValidationError(f"{file.name} is no trace that this page reads: {error.allowed}.") from None
        return file

    def clean_loads(self) -> list[float]:
        loads = sorted(set(self.cleaned_data["loads"]))
        if not all(0 < load <= MOST_LOAD for load in loads):
            raise ValidationError(f"Each must be greater than 0, and at most {MOST_LOAD:,}.")
        return loads

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        uploads = cleaned.get("trace") == UPLOAD
        if uploads and cleaned.get("file") is None and "file" not in self.errors:
            self.add_error("file", "Choose the file to upload.")
        if not uploads and cleaned.get("file") is not None:
            self.add_error("trace", "Choose “a file to upload”, or no file.")
        if not self.errors:
            self._compose(cleaned)
        return cleaned

    def _compose(self, cleaned: dict[str, Any]) -> None:
        try:
            bubbles = bubbles_of(self.user, cleaned["bubbles"], cleaned["slot_ms"])
            document = {
                "bubbles": bubbles,
                **{name: cleaned[name] for name in DOCUMENT},
                "profile": _profile(cleaned),
                "controller": {name: cleaned[name] for name in CONTROLLER if cleaned[name] is not None},
            }
            parse(ReplayRequest, {**document, "trace": next(iter(SHIPPED))})
        except InputError as error:
            self.take_input_error(error)
        except ValidationError as error:
            self.take_errors(error)
        else:
            self.document = document

    @property
    def question(self) -> dict[str, Any]:
        """What the computation keeps: documents of the engine, and what the pages say of them."""
        cleaned = self.cleaned_data
        fields: Any = self.fields
        uploads = cleaned["trace"] == UPLOAD
        values = {name: whole(cleaned[name]) for name in fields if name not in NOT_AGAIN}
        return {
            "document": self.document,
            "trace": None if uploads else cleaned["trace"],
            "trace_name": str(cleaned["file"].name)
            if uploads
            else label_of(cleaned["trace"], fields["trace"].choices),
            "bubbles": bubbles_named(cleaned["bubbles"], fields["bubbles"].choices),
            "loads": cleaned["loads"],
            "orders": cleaned["orders"],
            "values": values,
        }


def _profile(cleaned: dict[str, Any]) -> dict[str, Any]:
    if cleaned["profile"] == OWN:
        return {name: cleaned[name] for name in ("a_ms", "b_ms", "c_ms") if cleaned[name] is not None}
    profile = PROFILES[cleaned["profile"]]
    return {"model": profile.model, "gpu": profile.gpu, "tensor_parallel": profile.tensor_parallel}
