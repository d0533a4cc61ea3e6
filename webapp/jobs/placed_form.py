"""The launch form of a placement: what is trained on its groups and pipelines."""

from typing import Any

from engine.errors import InputError
from webapp.computations.models import Computation
from webapp.jobs.forms import JobForm, of_job
from webapp.placement.placed import PlacedJob, placed_job
from webapp.planning.forms import of_plan

SHAPE = ("layers", "hidden", "heads", "seq")
PLAIN = ("microbatches", "micro_batch", "policy", "steps", "lr", "seed")
TIMES = ("forward_ms", "backward_ms", "recompute_ms")
# Where neither a plan nor anybody has said something else.
FIRST: dict[str, Any] = {
    "hidden": 64,
    "heads": 4,
    "seq": 64,
    "microbatches": 4,
    "micro_batch": 2,
    "policy": "1f1b",
    "forward_ms": 20,
    "backward_ms": 40,
    "recompute_ms": 0,
    "steps": 1000,
    "lr": 0.003,
    "seed": 0,
}


class PlacedForm(JobForm):
    """A run whose ranks compute where a placement puts them; `placed` is what a valid form asks for.

    A placement says no model and no times: the form asks for them besides.
    """

    layers = of_job("model.layers")
    hidden = of_job("model.hidden")
    heads = of_job("model.heads")
    seq = of_job("model.seq", label="Sequence length, tokens")
    forward_ms = of_plan(
        "job.forward_ms",
        label="Forward time, ms",
        required=True,
        help_text="Of one microbatch on one stage. Only emulated GPUs use these times.",
    )
    backward_ms = of_plan("job.backward_ms", label="Backward time, ms", required=True)
    recompute_ms = of_plan("job.recompute_ms", label="Recompute time, ms")
    activation_bytes = of_job(
        "cell.activation_bytes",
        label="Message size, bytes",
        help_text="Activation or gradient of one microbatch between emulated GPUs. Leave empty to compute "
        "it from the model.",
    )

    layout = [
        JobForm.layout[0],
        ("Model", "", list(SHAPE)),
        JobForm.layout[1],
        ("Times", "", [*TIMES, "activation_bytes"]),
        *JobForm.layout[2:],
    ]

    def __init__(
        self, data: Any = None, *, placement: Computation, initial: dict[str, Any] | None = None
    ) -> None:
        """Raises InputError where the placement cannot be run at all (`placed_job`)."""
        values = {**FIRST, "layers": placement.request["grid"][0], **(initial or {})}
        placed = placed_job(placement, _training(values))
        super().__init__(
            data,
            document=placed.document,
            team=placement.team,
            gpu_of_rank=placed.gpu_of_rank,
            initial={"name": placement.name, **values},
        )
        self.placement = placement

    @property
    def placed(self) -> PlacedJob:
        """The job of a valid form, and where its ranks compute."""
        return PlacedJob(document=self.document, gpu_of_rank=[list(gpu) for gpu in self._gpu_of_rank])

    def take_input_error(self, error: InputError) -> None:
        """Each kind of time of the document is a field here."""
        section, _, kind = error.field.partition("times_ms.")
        field = f"{kind.partition('[')[0]}_ms" if section == "device." else error.field
        super().take_input_error(InputError(field, error.value, error.allowed))

    def _document(self, cleaned: dict[str, Any]) -> dict[str, Any]:
        self.old = placed_job(self.placement, _training(cleaned)).document
        return super()._document(cleaned)


def _training(values: dict[str, Any]) -> dict[str, Any]:
    """What `placed_job` reads, of the form's values."""
    training = {name: values[name] for name in PLAIN}
    training["model"] = {name: values[name] for name in SHAPE}
    training["times_ms"] = {
        name.removesuffix("_ms"): value for name in TIMES if (value := values[name]) is not None
    }
    if values.get("activation_bytes"):
        training["activation_bytes"] = values["activation_bytes"]
    return training
