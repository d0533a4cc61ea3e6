"""A model larger than the memory that it may use, swapped through the card beside its ops."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.gpu.report import Check, Report
from benchmarks.swap import smallest
from engine.inputs import parse
from engine.train.profiling import ProfileRequest, profile_stage

WIDE = {"family": "llama", "layers": 12, "hidden": 2048, "heads": 16, "kv_heads": 8, "seq": 1024}
SMALL = {"family": "llama", "layers": 8, "hidden": 64, "heads": 4, "kv_heads": 2, "seq": 64}
CAP_BYTES = {False: 1.4e9, True: 2.5e6}
HOST_GB_S = {False: 40.0, True: 5.0}
BAR = 0.92  # of a step's utilization, on a plan that the planner calls feasible


def swap(*, dry: bool) -> Report:
    """Utilization of a step beside the plan's, the loads that ops hide, and the most that was on the card."""
    model = SMALL if dry else WIDE
    request = {"model": model, "device": "cpu" if dry else "cuda", "repeats": 5}
    times = {
        name: median
        for name, (median, _) in profile_stage(parse(ProfileRequest, request), 0).times_ms.items()
    }
    document = smallest(
        {
            "datacenters": [{"name": "here", "gpus": 1}],
            "cell": {"microbatches": 1, "accumulation": 2},
            "model": model,
            "device": {"kind": "cpu" if dry else "cuda", "times_ms": times},
            "optimizer": {"steps": 6, "seed": 1},
            "strategy": {
                "kind": "swap",
                "gpu": {"memory_bytes": CAP_BYTES[dry], "host_to_device_gb_s": HOST_GB_S[dry]},
            },
        }
    )
    result, spans = _trained(document)
    done, busy, hidden = result["swap"], result["swap"]["step_utilization"], _hidden(spans)
    return Report(
        part="swap",
        checks=[
            Check(name="model's weights", value=f"{parameters(document) * 4 / 1e9:.2f} GB in fp32"),
            Check(
                name="most on the card",
                value=f"{done['peak_device_bytes'] / 1e9:.3f} GB",
                bar=f"at most {CAP_BYTES[dry] / 1e9:g} GB",
                ok=done["peak_device_bytes"] <= CAP_BYTES[dry],
            ),
            Check(
                name="utilization of a step",
                value=f"{busy['measured']:.1%}, planned {busy['planned']:.1%}",
                bar=f"at least {BAR:.0%}",
                ok=None if dry else busy["measured"] >= BAR,
            ),
            Check(name="loads beside ops, by spans", value=f"{hidden:.0%} of their time"),
            Check(
                name="microbatches, sub-models", value=f"{done['accumulation']}, {len(done['sub_models'])}"
            ),
            Check(name="last loss", value=f"{result['losses'][-1]:.4f} after {result['steps']} steps"),
        ],
    )


def parameters(document: dict[str, Any]) -> int:
    """Parameters of the document's model."""
    return parse(ProfileRequest, {"model": document["model"]}).model.shape.parameters


def _trained(document: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "spans.jsonl"
        call = [sys.executable, "-m", "engine.cli", "train", "-", "--json", "--spans", str(file)]
        done = subprocess.run(call, check=True, stdout=subprocess.PIPE, text=True, input=json.dumps(document))
        return json.loads(done.stdout), [json.loads(line) for line in file.read_text().splitlines()]


def _hidden(spans: list[dict[str, Any]]) -> float:
    """The share of the time of `load` spans during which an op of the same worker ran."""
    ops = sorted((s["start"], s["end"]) for s in spans if s["track"] == "gpu" and s["op"] in ("F", "R", "B"))
    loads = [(s["start"], s["end"]) for s in spans if s["track"] == "gpu" and s["op"] == "load"]
    beside = sum(max(0.0, min(end, stop) - max(start, begin)) for start, end in loads for begin, stop in ops)
    return beside / sum(end - start for start, end in loads) if loads else 0.0
