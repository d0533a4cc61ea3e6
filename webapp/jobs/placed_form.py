"""The launch form of a placement: what is trained on its groups and pipelines."""

from typing import Any

from django import forms

from engine.errors import InputError
from engine.runtime.job import RUNNABLE
from webapp.formkit import Sectioned
from webapp.jobs.placed import placed_job
from webapp.planning.dry import dry_run_document
from webapp.planning.models import Computation

SHAPE = ("layers", "hidden", "heads", "seq")
PLAIN = ("microbatches", "micro_batch", "policy", "steps", "lr", "seed")
TIMES = ("forward_ms", "backward_ms", "recompute_ms")


class PlacedForm(Sectioned, forms.Form):
    """`training` holds what is launched once the form is valid.

    dry : what a launch would meet (webapp/planning/dry.py); None where the values give no document.
    """

    name = forms.CharField(max_length=80)
    layers = forms.IntegerField(min_value=1, max_value=1000)
    hidden = forms.IntegerField(min_value=1, max_value=65536, initial=64)
    heads = forms.IntegerField(min_value=1, max_value=1024, initial=4)
    seq = forms.IntegerField(label="Sequence", min_value=1, max_value=65536, initial=64)
    microbatches = forms.IntegerField(label="Microbatches", min_value=1, max_value=10_000, initial=4)
    micro_batch = forms.IntegerField(
        label="Sequences a microbatch", min_value=1, max_value=100_000, initial=2
    )
    policy = forms.ChoiceField(choices=[(name, name) for name in RUNNABLE], initial="1f1b")
    forward_ms = forms.FloatField(
        label="Forward, ms", min_value=0.001, max_value=1e9, initial=20,
        help_text="Of one microbatch on one stage, as emulated GPUs take it; others take their own time.",
    )  # fmt: skip
    backward_ms = forms.FloatField(label="Backward, ms", min_value=0.001, max_value=1e9, initial=40)
    recompute_ms = forms.FloatField(
        label="Recompute, ms", min_value=0, max_value=1e9, initial=0, required=False
    )
    activation_bytes = forms.IntegerField(
        label="Message, bytes", min_value=1, max_value=10**11, required=False,
        help_text="One microbatch's activation or gradient, between emulated GPUs; empty: as computed.",
    )  # fmt: skip
    steps = forms.IntegerField(label="Iterations", min_value=1, max_value=10**9, initial=1000)
    lr = forms.FloatField(label="Learning rate", min_value=1e-9, max_value=1000, initial=0.003)
    seed = forms.IntegerField(min_value=0, max_value=2**31 - 1, initial=0)
    idempotency_key = forms.CharField(max_length=64, required=False, widget=forms.HiddenInput)

    layout = [
        ("Run", "", ["name", "steps"]),
        ("Model", "", list(SHAPE)),
        ("Training", "", ["microbatches", "micro_batch", "lr", "seed"]),
        ("Schedule", "", ["policy", *TIMES, "activation_bytes"]),
    ]

    def __init__(
        self, data: Any = None, *, placement: Computation, initial: dict[str, Any] | None = None
    ) -> None:
        stages = placement.request["grid"][0]
        super().__init__(data, initial={"name": placement.name, "layers": stages, **(initial or {})})
        self.placement = placement
        self.dry: dict[str, Any] | None = None

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not self.errors:
            self.training = _training(cleaned)
            try:
                placed = placed_job(self.placement, self.training)
            except InputError as error:
                self.take_input_error(error)
                return cleaned
            self.dry = dry_run_document(placed.document, self.placement.team, seats=placed.seats)
            for check in self.dry["checks"]:
                if check["blocks"] and not check["ok"]:
                    self.add_error(None, f"{check['name']}: {check['text']}")
        return cleaned


def _training(cleaned: dict[str, Any]) -> dict[str, Any]:
    training = {name: cleaned[name] for name in PLAIN}
    training["model"] = {name: cleaned[name] for name in SHAPE}
    training["times_ms"] = {
        name.removesuffix("_ms"): value for name in TIMES if (value := cleaned[name]) is not None
    }
    if cleaned["activation_bytes"]:
        training["activation_bytes"] = cleaned["activation_bytes"]
    return training
