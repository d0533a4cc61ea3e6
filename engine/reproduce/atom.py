"""The ATOM paper (§III-B, III-C, V-B): payloads, footprints, loading against sending, pipelines.

The text prints few figures; the curves of Figs. 3–16 are not read off here. Where it is silent the settings
are: numbers of four bytes, 80 % of a V100's 15.7 TFLOP/s (what large single-precision products reach), the
host link at 11.2 GB/s, four GPUs of one host behind one shaped network device (Wonder Shaper throttles a
device, so that all hops share it), no recomputation in the comparison. C = 4 is printed (§V-B1).
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
from engine.reproduce import Experiment, Explained, Outcome, Plot, Row, Series, Untested

MIB = 2**20
FP32 = 4
MFU = 0.8
ON_A_V100 = f"{100 * MFU:.0f} % of a V100's peak"
C = 4
STAGES = 4
GRPC_MBPS = 610  # what gRPC reaches on 10 Gbps Ethernet (§III-B2)
GPIPE_BUSY = 0.183  # §V-B1, on the loopback device
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
    row = Row(
        name="175B: sending over loading its logits layer",
        paper=6,
        ours=_sent_s(big.activation_bytes(1, FP32)) / _loaded_s(big.vocab * big.hidden * FP32),
        unit="x",
        tolerance=0.05,
        assumes=f"the host link at {DEFAULT_HOST_GB_S} GB/s",
        note=f"the network at {GRPC_MBPS} Mbps, as printed",
    )
    names = list(gpt3())
    sending = [1e3 * _sent_s(model.activation_bytes(1, FP32)) for model in gpt3().values()]
    blocks = [1e3 * _loaded_s(model.layer_parameters * FP32) for model in gpt3().values()]
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
    return Outcome(rows=(row,), plots=(plot,))


def speedups() -> Outcome:
    """Fig. 14: GPU time per mini-batch over that of ATOM, GPT-3 Small on V100 at 400 Mbps."""
    gain = {m: gains(400, microbatches=m, shared=True)["gpipe"] for m in (1, 4, 16)}
    apart = {m: gains(400, microbatches=m, shared=False)["gpipe"] for m in gain}
    again = gains(400, microbatches=4, shared=True, recompute=True)["gpipe"]
    others = "; ".join(f"M = {m}: {gain[m]:.1f}, {apart[m]:.1f} with a link for each hop" for m in gain)
    row = Row(
        name="GPT-3 Small, 400 Mbps: over GPipe",
        paper=20,
        ours=gain[4],
        unit="x",
        tolerance=0.1,
        assumes=f"M = 4, one shaped device for all hops, {ON_A_V100}, no recomputation",
        note=f"up to 20 in the text. {others}; M = 4 with recomputation {again:.1f}. Nothing is swapped",
    )
    return Outcome(rows=(row,), plots=(_by_model(),))


def _by_model() -> Plot:
    """Speed-up over GPipe by model: it falls with size, as work grows faster than what is sent."""
    names = ("gpt-3-small", "gpt-3-medium", "gpt-3-large", "gpt-3-xl", "gpt-3-2.7b", "gpt-3-6.7b")
    x = tuple(float(i) for i in range(len(names)))
    series = [
        Series(
            label=f"{mbps} Mbps",
            x=x,
            y=tuple(
                gains(mbps, model=name, microbatches=4, shared=True, recompute=True)["gpipe"]
                for name in names
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
    mbps = _loopback_mbps(GPIPE_BUSY)
    pipelines = _on_loopback(mbps)
    swap = _plan(model=TWO_BLOCKS)
    at_once = _plan(model=TWO_BLOCKS, accumulation=1).step
    assert swap.step is not None, swap.reason
    assert at_once is not None
    rows = (
        Row(
            name="ATOM",
            paper=91.9,
            ours=100 * swap.step.utilization,
            unit="%",
            tolerance=0.02,
            expected_deviation=0.0881,
            answer=Explained(
                cause="a stream of its own for swapping out; §IV has the computing stream do it",
                without_cause=100 * busy_swapping_out(swap),
            ),
            assumes=f"{ON_A_V100}, the host link at {DEFAULT_HOST_GB_S} GB/s",
            note=f"at C = 1 ours is {100 * at_once.utilization:.1f}, as loading takes longer than computing",
        ),
        Row(
            name="PipeDream",
            paper=46.3,
            ours=100 * pipelines["pipedream"],
            unit="%",
            tolerance=0.1,
            assumes=f"{mbps:,.0f} Mbps, where GPipe with M = 1 has the printed {100 * GPIPE_BUSY:.1f} %",
        ),
        Row(
            name="GPipe",
            paper=100 * GPIPE_BUSY,
            ours=100 * pipelines["gpipe"],
            unit="%",
            answer=Untested(why="the rate of the loopback device is not printed; this figure gives it"),
        ),
    )
    return Outcome(rows=rows)


def busy_swapping_out(swap: SwapResult) -> float:
    """Utilization where the GPU waits while a completed sub-model goes to the host (ATOM §IV).

    All but the last do after forward, all but the first after backward.
    """
    assert swap.step is not None, swap.reason
    sizes = [sub.parameter_bytes for sub in swap.subs]
    swapped_s = (sum(sizes[:-1]) + sum(sizes[1:])) / swap.host_bytes_per_s
    return swap.step.busy_s / (swap.step.step_s + swapped_s)


def _loopback_mbps(gpipe_utilization: float) -> float:
    """The rate at which GPipe, one mini-batch at a time, is that busy: by halving the interval."""
    low, high = 100.0, 100_000.0
    for _ in range(30):
        middle = (low * high) ** 0.5
        busy = _on_loopback(middle)["gpipe"]
        low, high = (low, middle) if busy > gpipe_utilization else (middle, high)
    return high


def scaling() -> Outcome:
    """Fig. 16c: the all-reduce by workers. The text prints no figure of it."""
    counts = (2, 4, 8, 12, 16, 64, 256)
    plot = Plot(
        name="atom-fig16c",
        title="All-reduce of GPT-3 XL at 400 Mbps",
        x_label="workers",
        y_label="s",
        series=(
            Series(
                label="ring", x=tuple(map(float, counts)), y=tuple(fleet(n).allreduce_s or 0 for n in counts)
            ),
        ),
    )
    return Outcome(rows=(), plots=(plot,))


def _two_blocks() -> Transformer:
    return replace(gpt3()["gpt-3-175b"], layers=TWO_BLOCKS["layers"])


def fleet(workers: Any) -> Fleet:
    """GPT-3 XL on `workers` at 400 Mbps, with a global batch of 256."""
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
def gains(
    mbps: float, *, model: str = "gpt-3-small", microbatches: int, shared: bool, recompute: bool = False
) -> dict[str, float]:
    """Speed-up of ATOM over each pipeline on V100s whose links have that rate, shared by all hops or not."""
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
    Experiment(name="atom-scaling", title="§V-B2, Fig. 16: workers", run=scaling),
)
