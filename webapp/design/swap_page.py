"""Swap plan: a model on one GPU that cannot hold it, its parts loaded from host memory in turn (ATOM)."""

from functools import partial
from typing import Any

from django import forms

from engine.cluster.gpus import catalogue
from engine.errors import InputError
from engine.inputs import parse
from engine.plan.request import DEFAULT_MFU
from engine.plan.swap.models import known_models
from engine.plan.swap.pipelines import NAMES
from engine.plan.swap.plan import plan_swap
from engine.plan.swap.request import SwapRequest
from webapp.common.document_fields import document_field
from webapp.common.figures import Column, Fact, Figures
from webapp.common.number_lists import Numbers
from webapp.design.layer_fields import FIELDS as LAYER_FIELDS
from webapp.design.layer_fields import LAYERS, LAYERS_CHOICE, LayerFields
from webapp.design.pages import DesignForm, DesignPage
from webapp.planning.model_fields import CONFIG_CHOICE, ModelFields
from webapp.planning.model_fields import FIELDS as MODEL_FIELDS

of_swap = partial(document_field, SwapRequest)
GIB = 2**30
MOST_MICROBATCHES = 4096
MOST_DRAWN = 600
MOST_NETWORKS = 10
MOST_ROWS = 12  # of a step that the page shows; its file has all


class SwapForm(DesignForm, LayerFields, ModelFields):
    previews = False  # whoever may read may ask here

    model = forms.ChoiceField(
        choices=[*((n, n) for n in known_models()), CONFIG_CHOICE, LAYERS_CHOICE], initial="gpt-3-6.7b"
    )
    micro_batch = of_swap("micro_batch", label="Mini-batch size, sequences")
    gpu = forms.ChoiceField(label="GPU type", choices=[(n, n) for n in catalogue()], initial="v100")
    memory_gib = of_swap(
        "gpu.memory_bytes",
        scale=1 / GIB,
        label="Memory, GiB",
        help_text="Leave empty for the catalogue's value.",
    )
    host_to_device_gb_s = of_swap("gpu.host_to_device_gb_s", label="Host-to-device bandwidth, GB/s")
    mfu = of_swap("mfu", label="MFU", required=True, initial=DEFAULT_MFU)
    block_gap_ms = of_swap(
        "block_gap_s",
        scale=1e3,
        required=False,
        label="Gaps between kernels, ms",
        help_text="Of a block, both passes of a mini-batch: gap_s of meridian profile --swap. The MFU "
        "then counts kernels alone. Leave empty to count none.",
    )
    dtype_bytes = of_swap("dtype_bytes", label="Numbers", words={4: "4 bytes", 2: "2 bytes"})
    recompute = of_swap("recompute")
    accumulation = of_swap("accumulation", help_text="Mini-batches per step. Leave empty for the fewest.")
    resident = of_swap("resident", label="Sub-models on the GPU", words={2: "2", 1: "1, as in the paper"})
    gradients = of_swap("gradients", words={"host": "on the host", "device": "stay"})
    workers = of_swap("workers", initial=4)
    global_batch = of_swap(
        "global_batch", initial=64, help_text="Mini-batches of all workers between two updates."
    )
    allreduce_gbps = of_swap("allreduce_gbps", label="All-reduce bandwidth, Gbit/s", initial=0.4)
    stages = of_swap("compare.stages", label="Pipeline stages", required=False, initial=4)
    microbatches = of_swap("compare.microbatches", required=False, most=MOST_MICROBATCHES, initial=8)
    mbps = Numbers(
        label="Networks, Mbit/s",
        most=MOST_NETWORKS,
        required=False,
        initial="400, 800, 10000",
        help_text="Bandwidth between pipeline stages. Enter several to compare them.",
    )

    layout = [
        ("Model", "", [*MODEL_FIELDS, *LAYER_FIELDS, "micro_batch", "dtype_bytes", "recompute"]),
        ("GPU", "", ["gpu", "memory_gib", "host_to_device_gb_s", "mfu", "block_gap_ms"]),
        ("Swapping", "", ["accumulation", "resident", "gradients"]),
        ("Fleet", "", ["workers", "global_batch", "allreduce_gbps"]),
        ("Compared with pipelines", "", ["stages", "microbatches", "mbps"]),
    ]

    def compose(self, values: dict[str, Any]) -> dict[str, Any]:
        gpu: dict[str, Any] = {"name": values["gpu"]}
        if values["memory_gib"] is not None:
            gpu["memory_bytes"] = values["memory_gib"] * GIB
        if values["host_to_device_gb_s"] is not None:
            gpu["host_to_device_gb_s"] = values["host_to_device_gb_s"]
        document: dict[str, Any] = {"gpu": gpu, **_of_model(values)}
        document |= {name: values[name] for name in ("resident", "gradients")}
        optional = ("accumulation", "workers", "global_batch", "allreduce_gbps")
        document |= {name: values[name] for name in optional if values[name] is not None}
        if values["stages"] and values["microbatches"] and values["mbps"]:
            document["compare"] = {
                "stages": values["stages"],
                "microbatches": values["microbatches"],
                "links": [{"name": f"{rate:g} Mbps", "mbps": rate} for rate in values["mbps"]],
            }
        return document

    def check(self, document: dict[str, Any]) -> None:
        parse(SwapRequest, document)

    def take_input_error(self, error: InputError) -> None:
        """Of layers, the error says which. The catalogue's GPU and its own memory are two fields here."""
        if error.field.startswith("layers"):
            self.add_error("layers", str(error))
            return
        names = {"gpu.memory_bytes": "memory_gib", "gpu.name": "gpu", "block_gap_s": "block_gap_ms"}
        field = names.get(error.field, error.field)
        super().take_input_error(InputError(field, error.value, error.allowed))


def _of_model(values: dict[str, Any]) -> dict[str, Any]:
    """What the layers are and take: measured, or of a model."""
    if values["model"] == LAYERS:
        return {"layers": values["layers"]}
    always = ("model", "micro_batch", "dtype_bytes", "recompute", "mfu")
    document = {name: values[name] for name in always}
    if values["block_gap_ms"]:
        document["block_gap_s"] = values["block_gap_ms"] / 1e3
    return document


def _facts(answer: dict[str, Any]) -> list[Fact]:
    if answer["step_s"] is None:
        return []
    fleet, steps, loads = answer["fleet"] or {}, answer["accumulation"], answer["loads_per_step"]
    facts = [
        Fact(
            label="Utilization",
            value=f"{100 * answer['utilization']:.1f}",
            unit="%",
            beside="of a step"
            if (kernels := answer.get("kernel_utilization")) is None
            else f"of a step; kernels {100 * kernels:.1f} %",
        ),
        Fact(
            label="Step",
            value=f"{answer['step_s']:,.3f}",
            unit="s",
            beside=f"{answer['stall_s']:,.3f} s of it waiting",
        ),
        Fact(
            label="Accumulation",
            value=f"{steps:,}",
            unit="mini-batch" if steps == 1 else "mini-batches",
            beside=f"loads {loads:,} {'sub-model' if loads == 1 else 'sub-models'}",
        ),
        Fact(
            label="Mini-batch",
            value=f"{answer['seconds_per_minibatch_gpu']:,.3f}",
            unit="s",
            beside="GPU time",
        ),
        Fact(
            label="Host memory", value=f"{answer['host_bytes'] / GIB:,.1f}", unit="GiB", beside="per worker"
        ),
    ]
    reduced = answer["allreduce_s"]
    note = "" if reduced is None else f"all-reduce {reduced:,.2f} s"
    if fleet.get("minibatches_per_s"):
        rate = f"{fleet['minibatches_per_s']:,.2f}"
        facts.append(Fact(label="All workers", value=rate, unit="mini-batches/s", beside=note))
    elif note:
        facts.append(Fact(label="All-reduce", value=f"{reduced:,.2f}", unit="s"))
    return facts


def _tables(answer: dict[str, Any]) -> list[Figures]:
    parts = [
        {**part, "number": i + 1, "layers": f"{part['first']}–{part['last']}"}
        for i, part in enumerate(answer["sub_models"])
    ]
    tables = [
        Figures(
            name="sub-models",
            title="Sub-models",
            note="Least data cut, then fewest sub-models, then earliest cuts",
            rows=parts,
            columns=[
                Column(label="", key="number", decimals=0),
                Column(label="Layers", key="layers"),
                Column(label="Memory", key="memory_bytes", unit="GiB", decimals=3, scale=1 / GIB),
                Column(label="Forward", key="forward_s", unit="ms", decimals=1, scale=1e3, wide=True),
                Column(label="Backward", key="backward_s", unit="ms", decimals=1, scale=1e3),
                *(
                    [Column(label="Gaps", key="gap_s", unit="ms", decimals=1, scale=1e3)]
                    if "kernel_utilization" in answer
                    else []
                ),
                Column(label="Load", key="load_s", unit="ms", decimals=1, scale=1e3),
            ],
        )
    ]
    if answer["compare"]:
        tables.append(
            Figures(
                name="compare",
                title="Compared with",
                note="GPU time: wall time × GPUs ÷ mini-batches",
                rows=[{**row, "method": NAMES[row["policy"]]} for row in answer["compare"]],
                columns=[
                    Column(label="Method", key="method"),
                    Column(label="Network", key="link"),
                    Column(label="Mini-batch", key="seconds_per_minibatch_gpu", unit="GPU s", decimals=4),
                    Column(label="Busy", key="utilization", unit="%", decimals=1, scale=100, wide=True),
                    Column(label="Speed-up of the swap plan", key="speedup", unit="×", decimals=2),
                ],
            )
        )
    if answer.get("spans"):
        tables.append(_step(answer["spans"]))
    return tables


def _step(spans: list[dict[str, Any]]) -> Figures:
    """What the chart of one step draws."""
    rows = [{**span, "number": span.get("chunk", 0) + 1} for span in sorted(spans, key=lambda s: s["start"])]
    return Figures(
        name="step",
        title="One step",
        note="What computes and what loads, over time",
        rows=rows,
        most=MOST_ROWS,
        columns=[
            Column(label="Op", key="op"),
            Column(label="Sub-model", key="number", decimals=0),
            Column(label="Start", key="start", unit="s", decimals=3),
            Column(label="End", key="end", unit="s", decimals=3),
        ],
    )


def _charts(answer: dict[str, Any]) -> dict[str, Any]:
    spans = answer.get("spans") or []
    if not spans or len(spans) > MOST_DRAWN:
        return {}
    return {
        "gantt": {
            "title": "One step, s",
            "length": answer["step_s"],
            "rows": ["Compute", "Load"],
            "spans": [
                {
                    "row": 1 if span["op"] == "load" else 0,
                    "kind": span["op"],
                    "start": span["start"],
                    "end": span["end"],
                    "label": f"{span['op']} {span.get('chunk', 0) + 1}",
                }
                for span in spans
            ],
        }
    }


page = DesignPage(
    title="Swap plan",
    lead="Trains a model on one GPU that cannot hold it: one part runs while the next one loads.",
    command="swap",
    script="js/design.js",
    form=SwapForm,
    answer=lambda document: plan_swap(parse(SwapRequest, document)).as_dict(),
    facts=_facts,
    tables=_tables,
    charts=_charts,
)
