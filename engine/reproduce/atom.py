"""The ATOM paper (§III-B, III-C, V-B): payloads, footprints, loading against sending, pipelines.

The text prints few figures; the curves of Figs. 3–16 are not read off here. Where it is silent the settings
are: numbers of four bytes, 80 % of a V100's 15.7 TFLOP/s (what large single-precision products reach), the
host link at 11.2 GB/s, C = 4 (§V-B1), four GPUs of one host behind one shaped network device (Wonder Shaper
throttles a device, so that all hops share it), no recomputation in the comparison.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from engine.inputs import parse
from engine.model.profile import BACKWARD_OVER_FORWARD
from engine.model.transformer import Transformer
from engine.plan.swap.fleet import Fleet
from engine.plan.swap.footprint import largest
from engine.plan.swap.layers import sub_models
from engine.plan.swap.models import gpt3
from engine.plan.swap.plan import plan_swap
from engine.plan.swap.profile import LAYERS_PER_BLOCK
from engine.plan.swap.request import DEFAULT_HOST_GB_S, SwapRequest
from engine.plan.swap.result import NUMBERS_PER_PARAMETER, SwapResult
from engine.reproduce import Experiment, Outcome, Plot, Row, Series

MIB = 2**20
FP32 = 4
MFU = 0.8
C = 4
STAGES = 4
GRPC_MBPS = 610  # what gRPC reaches on 10 Gbps Ethernet (§III-B2)
PAYLOADS_MIB = (6, 8, 12, 16, 20, 32, 40, 96)  # Table II, in the order of gpt3()
TWO_BLOCKS = {"layers": 2, "hidden": 12_288, "heads": 96, "vocab": 50_257, "seq": 2_048}


def table2() -> Outcome:
    """Table II, and the sizes that the text gives."""
    payloads = tuple(
        Row(
            name=f"payload of {name}",
            paper=printed,
            ours=model.activation_bytes(1, FP32) / MIB,
            unit="MiB",
            tolerance=0,
            note="sequence × width × 4 bytes",
        )
        for (name, model), printed in zip(gpt3().items(), PAYLOADS_MIB, strict=True)
    )
    full, cut = gpt3()["gpt-3-175b"], _two_blocks()
    sizes = (
        Row(name="175B, parameters", paper=700, ours=full.parameters * FP32 / 1e9, unit="GB", tolerance=0.01),
        Row(
            name="175B, with optimizer and gradients",
            paper=2.8,
            ours=full.parameters * FP32 * NUMBERS_PER_PARAMETER / 1e12,
            unit="TB",
            tolerance=0.01,
        ),
        Row(
            name="175B of two blocks, the same",
            paper=68,
            ours=cut.parameters * FP32 * NUMBERS_PER_PARAMETER / 1e9,
            unit="GB",
            tolerance=0.01,
            note="output matrix tied to the embedding",
        ),
        Row(
            name="175B, embedding",
            paper=2.4,
            ours=full.vocab * full.hidden * FP32 / 1e9,
            unit="GB",
            tolerance=0.05,
        ),
    )
    return Outcome(rows=payloads + sizes)


def footprint() -> Outcome:
    """Figs. 3 and 4: the operators of 175B that take most."""
    forward, backward = largest(gpt3()["gpt-3-175b"], 1, FP32)
    return Outcome(
        rows=(
            Row(
                name=f"forward: {forward.name}",
                paper=1_920,
                ours=forward.forward_bytes / MIB,
                unit="MiB",
                tolerance=0,
                note="output and a mask of one byte a number",
            ),
            Row(
                name=f"backward: {backward.name}",
                paper=3_072,
                ours=backward.backward_bytes / MIB,
                unit="MiB",
                tolerance=0,
                note="two tensors of scores; inputs and weights, which the text counts in, are not in it",
            ),
        )
    )


def loading() -> Outcome:
    """§III-B2, Figs. 6–8: loading a layer from the host against sending its output over the network."""
    big = gpt3()["gpt-3-175b"]
    rows = [
        Row(
            name="175B: sending over loading its logits layer",
            paper=6,
            ours=_sent_s(big.activation_bytes(1, FP32)) / _loaded_s(big.vocab * big.hidden * FP32),
            unit="x",
            tolerance=0.05,
            note=f"{GRPC_MBPS} Mbps against {DEFAULT_HOST_GB_S} GB/s",
        )
    ]
    names = list(gpt3())
    sending = [1e3 * _sent_s(model.activation_bytes(1, FP32)) for model in gpt3().values()]
    blocks = [1e3 * _loaded_s(model.layer_parameters * FP32) for model in gpt3().values()]
    rows.append(
        Row(
            name="models whose block loads faster than its activation is sent",
            paper=None,
            ours=sum(load < send for load, send in zip(blocks, sending, strict=True)),
            unit="of 8",
            note="the paper compares layers, not blocks: a block of 175B has 7.2 GB, 0.65 s against 1.32 s",
        )
    )
    x = tuple(float(i) for i in range(len(names)))
    plot = Plot(
        name="atom-loading",
        title="Loading a block, sending its activation (Small … 175B)",
        x_label="model",
        y_label="ms",
        kind="bars",
        series=(
            Series(label="load, 11.2 GB/s", x=x, y=tuple(blocks)),
            Series(label="send, 610 Mbps", x=x, y=tuple(sending)),
        ),
    )
    return Outcome(rows=tuple(rows), plots=(plot,))


def speedups() -> Outcome:
    """Fig. 14: GPU time per mini-batch over that of ATOM, GPT-3 Small on V100 at 400 Mbps."""
    gain = {m: _gains("gpt-3-small", 400, microbatches=m, shared=True) for m in (1, 4, 16)}
    apart = {m: _gains("gpt-3-small", 400, microbatches=m, shared=False) for m in (1, 4, 16)}
    again = _gains("gpt-3-small", 400, microbatches=4, shared=True, recompute=True)
    rows = [
        Row(
            name="GPT-3 Small, 400 Mbps: over GPipe, M = 4",
            paper=20,
            ours=gain[4]["gpipe"],
            unit="x",
            tolerance=0.1,
            note="up to 20 in the paper; one shaped device. Small fits a V100 whole: nothing is swapped",
        ),
        Row(
            name="the same, over PipeDream",
            paper=None,
            ours=gain[4]["pipedream"],
            unit="x",
            note="never slower than GPipe, as in the paper",
        ),
    ]
    variants = [(f"GPipe, M = {m}", gain[m]["gpipe"], "one shaped device") for m in (1, 16)]
    variants += [(f"GPipe, M = {m}", apart[m]["gpipe"], "a link of its own for each hop") for m in apart]
    variants += [("PipeDream", apart[4]["pipedream"], "a link of its own for each hop")]
    variants += [("GPipe, M = 4", again["gpipe"], "with recomputation, all three")]
    rows += [
        Row(name=f"GPT-3 Small, 400 Mbps: over {name}", paper=None, ours=ours, unit="x", note=note)
        for name, ours, note in variants
    ]
    return Outcome(rows=tuple(rows), plots=(_by_model(),))


def _by_model() -> Plot:
    """Speed-up over GPipe by model: it falls with size, as work grows faster than what is sent."""
    names = ("gpt-3-small", "gpt-3-medium", "gpt-3-large", "gpt-3-xl", "gpt-3-2.7b", "gpt-3-6.7b")
    x = tuple(float(i) for i in range(len(names)))
    series = [
        Series(
            label=f"{mbps} Mbps",
            x=x,
            y=tuple(
                _gains(name, mbps, microbatches=4, shared=True, recompute=True)["gpipe"] for name in names
            ),
        )
        for mbps in (400, 800)
    ]
    return Plot(
        name="atom-fig14",
        title="Over GPipe, M = 4, with recomputation (Small … 6.7B)",
        x_label="model",
        y_label="x",
        kind="bars",
        series=tuple(series),
    )


def utilization() -> Outcome:
    """Fig. 15: GPU utilization of 175B cut to two blocks, on the loopback device."""
    mbps = _loopback_mbps(0.183)
    pipedream = _on_loopback(mbps)["pipedream"]
    swap = _plan(model=TWO_BLOCKS)
    assert swap.step is not None, swap.reason
    naive = swap.compare[0].utilization
    rows = (
        Row(
            name="ATOM",
            paper=91.9,
            ours=100 * swap.step.utilization,
            unit="%",
            tolerance=0.1,
            note="V100, C = 4, gradients to the host; gaps between kernels are not in the model",
        ),
        Row(
            name="PipeDream",
            paper=46.3,
            ours=100 * pipedream,
            unit="%",
            tolerance=0.1,
            note=f"at {mbps:,.0f} Mbps: the text lacks the rate; there GPipe, M = 1, has its 18.3 %",
        ),
        Row(
            name="naive order, C = 1", paper=None, ours=100 * naive, unit="%", note="Fig. 12's other schedule"
        ),
    )
    return Outcome(rows=rows)


def _loopback_mbps(gpipe_utilization: float) -> float:
    """The rate at which GPipe, one mini-batch at a time, is that busy: by halving the interval."""
    low, high = 100.0, 100_000.0
    for _ in range(30):
        middle = (low * high) ** 0.5
        busy = _on_loopback(middle)["gpipe"]
        low, high = (low, middle) if busy > gpipe_utilization else (middle, high)
    return high


def scaling() -> Outcome:
    """Fig. 16c and mixed GPUs: the all-reduce by workers, and a global batch of 256 on three kinds of GPU."""
    counts = (2, 4, 8, 12, 16, 64, 256)
    seconds = [_fleet(n).allreduce_s or 0.0 for n in counts]
    mixed = [  # TFLOP/s in single precision: NVIDIA's figures for the two GeForce cards
        {"gpu": {"name": "v100"}, "count": 4},
        {"gpu": {"memory_bytes": 11 * 2**30, "tflops": 11.34}, "count": 4},  # GTX 1080 Ti
        {"gpu": {"memory_bytes": 8 * 2**30, "tflops": 8.87}, "count": 4},  # GTX 1080
    ]
    together = _fleet(mixed)
    alone = _fleet(4)
    rows = (
        Row(
            name="all-reduce, 12 workers over 4",
            paper=None,
            ours=seconds[3] / seconds[1],
            unit="x",
            note="'no dramatic change' (Fig. 16c): a ring sends 2(N − 1)/N of the gradients",
        ),
        Row(
            name="256 mini-batches of GPT-3 XL, 4 V100",
            paper=None,
            ours=alone.update_s or 0.0,
            unit="s",
            note="with all-reduce at 400 Mbps",
        ),
        Row(
            name="the same, with 4 GTX 1080 Ti and 4 GTX 1080",
            paper=None,
            ours=together.update_s or 0.0,
            unit="s",
            note="each kind at its own pace and partition",
        ),
    )
    plot = Plot(
        name="atom-fig16c",
        title="All-reduce of GPT-3 XL at 400 Mbps",
        x_label="workers",
        y_label="s",
        series=(Series(label="ring", x=tuple(map(float, counts)), y=tuple(seconds)),),
    )
    return Outcome(rows=rows, plots=(plot,))


def _two_blocks() -> Transformer:
    return replace(gpt3()["gpt-3-175b"], layers=TWO_BLOCKS["layers"])


def _fleet(workers: Any) -> Fleet:
    result = _plan(model="gpt-3-xl", accumulation=None, workers=workers, global_batch=256, allreduce_gbps=0.4)
    assert result.fleet is not None, result.reason
    return result.fleet


def _sent_s(size: float) -> float:
    return size * 8 / (GRPC_MBPS * 1e6)


def _loaded_s(size: float) -> float:
    return size / (DEFAULT_HOST_GB_S * 1e9)


def _plan(**fields: Any) -> SwapResult:
    """A plan in the settings of this module, with `fields` on top."""
    settings = {"gpu": {"name": "v100"}, "mfu": MFU, "accumulation": C, "spans": False}
    return plan_swap(parse(SwapRequest, {**settings, **fields}))


@cache
def _gains(
    model: str, mbps: float, *, microbatches: int, shared: bool, recompute: bool = False
) -> dict[str, float]:
    links = [{"name": "link", "mbps": mbps, "shared": shared}]
    compare = {"stages": STAGES, "microbatches": microbatches, "links": links}
    result = _plan(model=model, recompute=recompute, compare=compare)
    assert result.feasible, result.reason
    return {row.policy: row.speedup for row in result.compare}


@cache
def _block_layers() -> list[dict[str, Any]]:
    """175B of two blocks cut at the boundaries of blocks alone, as the paper cuts for pipelines (§III-B2)."""
    layers = _plan(model=TWO_BLOCKS).layers
    firsts = (0, 1, 1 + LAYERS_PER_BLOCK, 1 + 2 * LAYERS_PER_BLOCK)
    return [
        {
            "name": layers[part.first].name,
            "memory_bytes": part.memory_bytes,
            "forward_s": part.forward_s,
            "backward_s": BACKWARD_OVER_FORWARD * part.forward_s,
            "load_s": part.load_s,
            "cut_bytes": layers[part.last].cut_bytes,
        }
        for part in sub_models(layers, firsts)
    ]


def _on_loopback(mbps: float) -> dict[str, float]:
    """Utilization of the two pipelines, one mini-batch at a time in GPipe."""
    links = [{"name": "loopback", "mbps": mbps, "shared": True}]
    request = {
        "layers": _block_layers(),
        "gpu": {"memory_bytes": 1e12},
        "compare": {"stages": STAGES, "microbatches": 1, "links": links},
        "spans": False,
    }
    return {row.policy: row.utilization for row in plan_swap(parse(SwapRequest, request)).compare}


EXPERIMENTS = (
    Experiment(name="atom-table2", title="Table II: activation payloads, and sizes in the text", run=table2),
    Experiment(name="atom-footprint", title="Figs. 3, 4: operators that take most memory", run=footprint),
    Experiment(name="atom-loading", title="§III-B2: loading layers against sending activations", run=loading),
    Experiment(name="atom-speedup", title="§V-B1, Fig. 14: GPU time per mini-batch", run=speedups),
    Experiment(name="atom-utilization", title="§V-B1, Fig. 15: GPU utilization", run=utilization),
    Experiment(name="atom-scaling", title="§V-B2, Fig. 16: workers, mixed GPUs", run=scaling),
)
