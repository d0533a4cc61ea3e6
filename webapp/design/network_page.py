"""Network design: rail-only compared with rail-optimised fabrics, and a model on them."""

from functools import partial
from typing import Any

from django import forms

from engine.cluster.gpus import catalogue
from engine.errors import InputError
from engine.inputs import parse
from engine.model.presets import PER_STAGE, PRESETS
from engine.plan.network.design import design
from engine.plan.network.request import NetworkRequest
from webapp.common.document_fields import document_field
from webapp.common.figures import Column, Fact, Figures
from webapp.common.markup import DASH
from webapp.common.number_lists import Numbers
from webapp.design.network_figures import (
    SWEPT,
    heat_matrix,
    heat_of,
    heat_table,
    sweep_chart,
    sweep_table,
    swept,
)
from webapp.design.pages import DesignForm, DesignPage
from webapp.planning.model_fields import CONFIG_CHOICE, ModelFields
from webapp.planning.model_fields import FIELDS as MODEL_FIELDS

of_network = partial(document_field, NetworkRequest)
# What a page may compute while somebody waits; the command line has no such limits.
MOST_GPUS = 200_000
MOST_DOMAINS = 8
MOST_VALUES = 6
COLLECTIVES = {
    "allgather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "allreduce": "all-reduce",
    "all_to_all": "all-to-all",
}
RATED = [name for name, gpu in catalogue().items() if gpu.nic_bytes_per_s]
MODELS = [name for name in PRESETS if name not in PER_STAGE]


class NetworkForm(DesignForm, ModelFields):
    previews = False  # whoever may read may ask here

    gpus = of_network("gpus", label="GPUs", most=MOST_GPUS, initial=32_768)
    gpu_type = forms.ChoiceField(label="GPU type", choices=[(n, n) for n in RATED], initial="h100")
    hb_domain = Numbers(
        label="High-bandwidth (HB) domain sizes, GPUs",
        whole=True,
        most=MOST_DOMAINS,
        initial="8, 64, 256",
        help_text="GPUs per high-bandwidth domain. Enter several to compare them.",
    )
    switch_radix = of_network("switch_radix", label="Ports per switch", initial=64)
    message_mb = forms.FloatField(
        label="Message size, MB",
        min_value=0.001,
        max_value=1e6,
        initial=1000,
        required=False,
        help_text="Buffer of a collective over all GPUs; for an all-to-all, what each GPU sends. Leave "
        "empty for no collectives.",
    )
    model = forms.ChoiceField(
        choices=[("", "none: fabric only"), *((n, n) for n in MODELS), CONFIG_CHOICE],
        required=False,
        initial="gpt-1t",
    )
    batch = of_network("batch", label="Batch", initial=4096, help_text="Sequences.")
    recompute = of_network("recompute")
    tp = of_network("tp", label="TP", help_text="Leave empty for the fastest that fits.")
    pp = of_network("pp", label="PP")
    interleave = of_network("interleave")
    experts = of_network("moe.experts", required=False, help_text="Leave empty for a dense model.")
    top_k = of_network("moe.top_k", label="Experts per token", required=False, initial=2)
    every = of_network("moe.every", label="Expert block interval, blocks", required=False, initial=1)
    hb_gb_s = of_network(
        "hb_gb_s",
        label="HB domain bandwidth, GB/s",
        help_text="Per GPU and direction. Leave empty for the catalogue's value.",
    )
    nic_gb_s = of_network("nic_gb_s", label="NIC bandwidth, GB/s")
    port_usd = of_network("prices.port_usd", label="Port price, $")
    transceiver_usd = of_network("prices.transceiver_usd", label="Transceiver price, $")
    port_w = of_network("prices.port_w", label="Port power, W")
    transceiver_w = of_network("prices.transceiver_w", label="Transceiver power, W")
    spare_switches = of_network(
        "spare_switches",
        label="Spare rail switches",
        required=False,
        help_text="Of the rail-only fabric; each can take over for a failed one. Leave empty for none.",
    )
    failing_percent = of_network(
        "transceiver_failures.per_year",
        scale=100,
        label="Transceivers that fail in a year, %",
        required=False,
        help_text="Leave empty to count no failures of transceivers.",
    )
    repair_h = of_network("transceiver_failures.repair_h", label="Time until replaced, h", required=False)
    gpu_usd_per_h = of_network(
        "transceiver_failures.gpu_usd_per_h",
        label="GPU price, $/h",
        required=False,
        help_text="Of a GPU that waits behind a failed transceiver.",
    )
    sweep = forms.ChoiceField(
        label="Sweep parameter",
        required=False,
        choices=[("", "nothing"), *((name, f"{label}, {unit}") for name, (label, unit) in SWEPT.items())],
    )
    values = Numbers(
        most=MOST_VALUES,
        required=False,
        help_text=f"Enter at most {MOST_VALUES} values, such as 25, 50, 100.",
    )

    layout = [
        (
            "Fabric",
            "",
            ["gpus", "gpu_type", "hb_domain", "switch_radix", "hb_gb_s", "nic_gb_s", "message_mb"],
        ),
        ("Model", "", [*MODEL_FIELDS, "batch", "recompute"]),
        ("Parallelism", "", ["tp", "pp", "interleave"]),
        ("Mixture of experts", "", ["experts", "top_k", "every"]),
        ("Sweep", "Vary one parameter, for all designs", ["sweep", "values"]),
        ("Prices", "", ["port_usd", "transceiver_usd", "port_w", "transceiver_w"]),
        (
            "Failures",
            "Spare switches, and transceivers that fail",
            ["spare_switches", "failing_percent", "repair_h", "gpu_usd_per_h"],
        ),
    ]

    def compose(self, values: dict[str, Any]) -> dict[str, Any]:
        prices = {name: values[name] for name in ("port_usd", "transceiver_usd", "port_w", "transceiver_w")}
        document: dict[str, Any] = {
            "gpus": values["gpus"],
            "hb_domain": values["hb_domain"],
            "prices": prices,
            "switch_radix": values["switch_radix"],
            "gpu_type": values["gpu_type"],
        }
        optional = ("hb_gb_s", "nic_gb_s", "spare_switches")
        document |= {name: values[name] for name in optional if values[name] is not None}
        if values["failing_percent"] is not None:
            document["transceiver_failures"] = {
                "per_year": values["failing_percent"] / 100,
                "repair_h": values["repair_h"] or 0.0,
                "gpu_usd_per_h": values["gpu_usd_per_h"] or 0.0,
            }
        if values["message_mb"] is not None:
            document["collectives"] = _over_all(values["gpus"], document["hb_domain"], values["message_mb"])
        if not values["model"]:
            return document
        trained = ("model", "batch", "recompute", "tp", "pp", "interleave")
        document |= {name: values[name] for name in trained if values[name] is not None}
        if values["experts"]:
            document["moe"] = {
                "experts": values["experts"],
                "top_k": values["top_k"] or 1,
                "every": values["every"] or 1,
            }
        return document

    def check(self, document: dict[str, Any]) -> None:
        parse(NetworkRequest, document)

    @property
    def question(self) -> dict[str, Any]:
        return self.document | ({"swept": self.swept} if self.swept else {})

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        self.swept: dict[str, Any] | None = None
        if cleaned.get("failing_percent") is not None and cleaned.get("repair_h") is None:
            self.add_error("repair_h", "Enter the hours until a failed transceiver is replaced.")
        if not self.errors and (cleaned.get("sweep") or cleaned.get("values")):
            self._sweep(cleaned["sweep"], cleaned["values"])
        return cleaned

    def _sweep(self, parameter: str, values: list[float] | None) -> None:
        """Take the sweep, or say at its fields what is missing or refused."""
        if not parameter:
            self.add_error("sweep", "Choose the parameter that takes these values.")
        elif not values:
            self.add_error("values", "Enter the values of the parameter.")
        elif "model" not in self.document:
            self.add_error("sweep", "Choose a model: without one there is no iteration time to compute.")
        else:
            whole = [int(v) if parameter == "batch" and v.is_integer() else v for v in values]
            try:
                for value in whole:
                    self.check({**self.document, parameter: value})
            except InputError as error:
                self.add_error("values", str(error))
            else:
                self.swept = {"parameter": parameter, "values": sorted(set(whole))}


def _over_all(gpus: int, domains: list[int], message_mb: float) -> list[dict[str, Any]]:
    """Every collective over all GPUs, as x in an HB domain by y domains."""
    sizes = [size for size in domains if size > 0 and gpus % size == 0]
    return [
        # Of an all-to-all the engine counts what goes from one GPU to one other.
        {
            "op": op,
            "x": size,
            "y": gpus // size,
            "bytes": message_mb * 1e6 / (gpus if op == "all_to_all" else 1),
        }
        for size in sizes
        for op in COLLECTIVES
    ]


def _answer(document: dict[str, Any]) -> dict[str, Any]:
    sweep = document.pop("swept", None)
    result = design(parse(NetworkRequest, document))
    answer = result.as_dict() | {"heat": heat_of(result)}
    return answer | ({"swept": swept(document, **sweep)} if sweep else {})


def _facts(answer: dict[str, Any]) -> list[Fact]:
    """Of the HB domain with the fastest iteration; without a model of the largest."""
    timed = [row for row in answer.get("iterations") or [] if row["feasible"]]
    best = min(timed, key=lambda row: float(row["iteration_s"]), default=None)
    fastest = best["hb_domain"] if best else None
    fabric = max(answer["fabrics"], key=lambda each: (each["hb_domain"] == fastest, each["hb_domain"]))
    size, facts = fabric["hb_domain"], []
    if best:
        ideal = best["ideal_s"]
        over = f", {100 * (best['iteration_s'] / ideal - 1):.1f} % over ideal" if ideal else ""
        facts.append(
            Fact(label="Iteration", value=f"{best['iteration_s']:,.3f}", unit="s", beside=f"HB {size}{over}")
        )
    facts += [
        Fact(
            label=label,
            value=DASH if saved is None else f"{100 * saved:,.1f}",
            unit="%",
            beside=f"{part / 1e6:,.2f} of {whole / 1e6:,.2f} {unit}",
        )
        for label, saved, part, whole, unit in (
            (
                "Cost saved by rail-only",
                fabric["cost_saving"],
                fabric["rail_only"]["cost_usd"],
                fabric["rail_optimised"]["cost_usd"],
                "M$",
            ),
            (
                "Power saved by rail-only",
                fabric["power_saving"],
                fabric["rail_only"]["power_w"],
                fabric["rail_optimised"]["power_w"],
                "MW",
            ),
        )
    ]
    for row in answer.get("collectives") or []:
        if row["op"] == "all_to_all" and row["x"] == size and row["rail_optimised_s"]:
            slower = 100 * (row["rail_only_s"] / row["rail_optimised_s"] - 1)
            facts.append(
                Fact(
                    label="All-to-all slowdown",
                    value=f"{slower:,.1f}",
                    unit="%",
                    beside=f"HB {size}, over all GPUs",
                )
            )
    return facts + _carried(answer)


def _carried(answer: dict[str, Any]) -> list[Fact]:
    traffic = answer.get("traffic")
    if not traffic:
        return []
    first = f"HB {answer['fabrics'][0]['hb_domain']}"
    share = 100 * traffic["bytes"]["tp"] / traffic["total_bytes"] if traffic["total_bytes"] else 0.0
    return [
        Fact(
            label="Traffic per iteration",
            value=f"{traffic['total_bytes'] / 1e12:,.1f}",
            unit="TB",
            beside=f"{first}, {share:.1f} % of them TP",
        ),
        Fact(
            label="GPU pairs without traffic",
            value=f"{100 * traffic['pairs']['none']:.3f}",
            unit="%",
            beside=f"{first}, of pairs of GPUs",
        ),
    ]


def _tables(answer: dict[str, Any]) -> list[Figures]:
    tables = []
    if answer.get("iterations"):
        tables += [_iterations(answer["iterations"]), _parts(answer["iterations"])]
    if answer.get("swept"):
        tables.append(sweep_table(answer["swept"]))
    if answer.get("heat"):
        tables.append(heat_table(answer["heat"]))
    if answer.get("collectives"):
        tables.append(_collectives(answer["collectives"]))
    tables.append(_fabrics(answer["fabrics"]))
    if any("outages" in pair for pair in answer["fabrics"]):
        tables.append(_outages(answer["fabrics"]))
    if answer.get("traffic"):
        tables.append(_traffic(answer["traffic"]))
    if answer.get("failures"):
        tables.append(_failures(answer["failures"]))
    return tables


def _iterations(rows: list[dict[str, Any]]) -> Figures:
    return Figures(
        name="iterations",
        title="Iteration time by HB domain",
        note="With the fastest parallelism that fits",
        rows=rows,
        columns=[
            Column(label="HB", key="hb_domain", decimals=0),
            Column(label="TP", key="tp", decimals=0),
            Column(label="PP", key="pp", decimals=0),
            Column(label="DP", key="dp", decimals=0),
            Column(label="Interleave", key="interleave", decimals=0, wide=True),
            Column(label="Iteration", key="iteration_s", unit="s", decimals=3),
            Column(label="With spines", key="rail_optimised_s", unit="s", decimals=3, wide=True),
            Column(label="Ideal", key="ideal_s", unit="s", decimals=3, wide=True),
            Column(label="MFU", key="mfu", unit="%", decimals=1, scale=100, wide=True),
            Column(label="HFU", key="hfu", unit="%", decimals=1, scale=100, wide=True),
            Column(label="Memory", key="memory_gb_per_gpu", unit="GB", decimals=1, wide=True),
            *([Column(label="", key="reason")] if any(row["reason"] for row in rows) else []),
        ],
    )


def _parts(rows: list[dict[str, Any]]) -> Figures:
    """What the chart of an iteration's parts draws."""
    return Figures(
        name="parts",
        title="Parts of an iteration",
        note="The parts add up: nothing overlaps",
        rows=[row for row in rows if row["feasible"]],
        columns=[
            Column(label="HB", key="hb_domain", decimals=0),
            *(Column(label=of, key=f"parts_s.{part}", unit="s", decimals=3) for part, of in PARTS.items()),
            Column(label="Iteration", key="iteration_s", unit="s", decimals=3),
        ],
    )


def _collectives(rows: list[dict[str, Any]]) -> Figures:
    return Figures(
        name="collectives",
        title="Collectives over all GPUs",
        note="At nominal rates; for an all-to-all the message is that of one pair",
        rows=[{**row, "name": COLLECTIVES[row["op"]], "slowdown": _slowdown(row)} for row in rows],
        columns=[
            Column(label="HB", key="x", decimals=0),
            Column(label="Domains", key="y", decimals=0, wide=True),
            Column(label="Collective", key="name"),
            Column(label="Message", key="bytes", unit="MB", decimals=3, scale=1e-6, wide=True),
            Column(label="Rail-only", key="rail_only_s", unit="ms", decimals=2, scale=1e3),
            Column(label="Rail-optimised", key="rail_optimised_s", unit="ms", decimals=2, scale=1e3),
            Column(label="Slow-down", key="slowdown", unit="×", decimals=3, wide=True),
        ],
    )


def _slowdown(row: dict[str, Any]) -> float | None:
    """What forwarding inside HB domains costs."""
    return row["rail_only_s"] / row["rail_optimised_s"] if row["rail_optimised_s"] else None


def _fabrics(fabrics: list[dict[str, Any]]) -> Figures:
    rows = []
    for fabric in fabrics:
        for kind, label in (("rail_optimised", "rail-optimised"), ("rail_only", "rail-only")):
            saving = {n: fabric[n] for n in ("cost_saving", "power_saving")} if kind == "rail_only" else {}
            rows.append({"hb_domain": fabric["hb_domain"], "design": label, **fabric[kind], **saving})
        if spares := fabric.get("spares"):
            label = f"rail-only, {spares['switches']:,} spare"
            saving = {n: spares[n] for n in ("cost_saving", "power_saving", "most")}
            rows.append({"hb_domain": fabric["hb_domain"], "design": label, **spares["rail_only"], **saving})
    return Figures(
        name="fabrics",
        title="Fabrics",
        note="Clos network with the fewest tiers, at the prices entered",
        rows=rows,
        columns=[
            Column(label="HB", key="hb_domain", decimals=0),
            Column(label="Fabric", key="design"),
            Column(label="Tiers", key="tiers", decimals=0, wide=True),
            Column(label="Switches", key="switches", decimals=0),
            Column(label="Transceivers", key="transceivers", decimals=0, wide=True),
            Column(label="Cost", key="cost_usd", unit="M$", decimals=2, scale=1e-6),
            Column(label="Power", key="power_w", unit="MW", decimals=3, scale=1e-6, wide=True),
            Column(label="Saves", key="cost_saving", unit="% cost", decimals=1, scale=100),
            Column(label="Saves", key="power_saving", unit="% power", decimals=1, scale=100, wide=True),
            *(
                [Column(label="Spares", key="most", unit="most at equal cost", decimals=0, wide=True)]
                if any("most" in row for row in rows)
                else []
            ),
        ],
    )


def _outages(fabrics: list[dict[str, Any]]) -> Figures:
    rows = [
        {"hb_domain": fabric["hb_domain"], "design": kind.replace("_", "-"), **fabric["outages"][kind]}
        for fabric in fabrics
        for kind in ("rail_optimised", "rail_only")
    ]
    return Figures(
        name="outages",
        title="Transceivers that fail in a year",
        note="A GPU is lost while the transceiver on its own link is out",
        rows=rows,
        columns=[
            Column(label="HB", key="hb_domain", decimals=0),
            Column(label="Fabric", key="design"),
            Column(label="Failures", key="failures", decimals=1),
            Column(label="Replaced", key="replaced_usd", unit="$", decimals=0),
            Column(label="GPU time lost", key="gpu_hours_lost", unit="GPU h", decimals=1),
            Column(label="Its price", key="lost_usd", unit="$", decimals=0, wide=True),
        ],
    )


def _traffic(traffic: dict[str, Any]) -> Figures:
    kinds = {"tp": "TP", "dp_hb": "DP in the HB domain", "dp_nic": "DP on NICs", "pp": "PP", "ep": "EP"}
    rows = [
        {
            "kind": label,
            "bytes": traffic["bytes"][kind],
            "share": traffic["bytes"][kind] / traffic["total_bytes"],
        }
        for kind, label in kinds.items()
    ]
    return Figures(
        name="traffic",
        title="Traffic of one iteration",
        note="Sum of all collectives",
        rows=rows,
        columns=[
            Column(label="", key="kind"),
            Column(label="Bytes", key="bytes", unit="TB", decimals=2, scale=1e-12),
            Column(label="Share", key="share", unit="%", decimals=2, scale=100),
        ],
    )


def _failures(failures: list[dict[str, Any]]) -> Figures:
    rows = [{**row, "design": row["design"].replace("_", "-")} for row in failures]
    return Figures(
        name="failures",
        title="After a failure",
        note="For the first HB domain size above",
        rows=rows,
        columns=[
            Column(label="Failure of", key="case"),
            Column(label="Fabric", key="design"),
            Column(label="GPUs lost", key="gpus_lost", decimals=0),
            Column(label="Iteration", key="iteration_s", unit="s, without spares", decimals=3),
            Column(label="Slow-down", key="slowdown", unit="×", decimals=3, wide=True),
            Column(label="Spares", key="spares", decimals=0, wide=True),
            Column(label="Iteration", key="spared_iteration_s", unit="s, with spares", decimals=3, wide=True),
            Column(label="Recovery", key="recovery", wide=True),
        ],
    )


PARTS = {"compute": "Compute", "tp": "TP", "pp": "PP", "dp": "DP", "ep": "EP", "bubble": "Bubble"}


def _charts(answer: dict[str, Any]) -> dict[str, Any]:
    rows = [row for row in answer.get("iterations") or [] if row["feasible"]]
    drawn = sweep_chart(answer["swept"]) if answer.get("swept") else None
    stacks = (
        {
            "stacks": {
                "title": "Parts of an iteration, s",
                "parts": list(PARTS.values()),
                "bars": [
                    {"label": f"HB {row['hb_domain']}", "values": [row["parts_s"][part] for part in PARTS]}
                    for row in rows
                ],
            }
        }
        if rows
        else {}
    )
    return stacks | ({"lines": drawn} if drawn else {})


page = DesignPage(
    title="Network design",
    lead="Compares rail-only and rail-optimised networks: cost, power, iteration times, collectives, "
    "traffic, failures.",
    command="network",
    script="js/design.js",
    form=NetworkForm,
    answer=_answer,
    facts=_facts,
    tables=_tables,
    charts=_charts,
    heat=lambda answer: heat_matrix(answer["heat"]) if answer.get("heat") else None,
)
