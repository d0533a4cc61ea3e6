"""Times of a Llama-3 8B layer and head beside the cost model's, and the share of the card's peak."""

import itertools

from benchmarks.gpu.report import Check, Report, Table
from engine.cluster.gpus import catalogue, gpu
from engine.errors import InputError
from engine.inputs import parse
from engine.model import kernels
from engine.model.efficiency import shipped
from engine.model.kernels import Device, How
from engine.model.transformer import Transformer
from engine.train.profiling import ProfileRequest, profile_stage

LENGTHS = (2048, 4096, 8192)
SHAPE = {
    "family": "llama",
    "layers": 3,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "ffn": 14_336,
    "vocab": 128_256,
}
SMALL = {"family": "llama", "layers": 3, "hidden": 64, "heads": 4, "kv_heads": 2, "vocab": 256}
HOW = How(recompute="none", sequence_parallel=False, fused_attention=True)
MFU_BAR = 0.5


def layers(*, dry: bool) -> Report:
    """Forward, recompute and backward of a layer at three lengths, and of the head."""
    report, rows, shares = Report(part="layers"), [], []
    name, device = _device(dry)
    for seq in (64,) if dry else LENGTHS:
        block_ms = _measured(seq, 1, dry)
        last_ms = _measured(seq, 2, dry)
        shape = _request(seq, dry).model.shape
        block = kernels.block(shape, HOW, device, 1, 1)
        head = kernels.head(shape, device, 1, 1)
        says = {"forward": block.forward_s, "recompute": block.forward_s, "backward": block.backward_s}
        rows += [_row("layer", op, seq, block_ms[op], 1e3 * float(says[op])) for op in says]
        for op, seconds_of_op in (("forward", head.forward_s), ("backward", head.backward_s)):
            rows.append(_row("head", op, seq, last_ms[op] - block_ms[op], 1e3 * float(seconds_of_op)))
        flops = 3 * _forward_flops(shape)
        share = flops / ((block_ms["forward"] + block_ms["backward"]) / 1e3) / gpu(name).flops(2)
        shares.append((seq, share))
    report.tables.append(
        Table(
            title=f"A layer and the head of Llama-3 8B, bf16 over fp32 weights; cost model: {name}",
            columns=("part", "op", "tokens", "measured ms", "cost model ms", "error"),
            rows=rows,
            note="error: of the cost model against what was measured. Micro-batch 1.",
        )
    )
    for seq, share in shares:
        report.checks.append(
            Check(
                name=f"MFU of a layer, forward and backward, {seq} tokens",
                value=f"{share:.1%}",
                bar=f"at least {MFU_BAR:.0%}",
                ok=None if dry else share >= MFU_BAR,
            )
        )
    return report


BLOCKS = (
    {"hidden": 2048, "heads": 16, "kv_heads": 8, "ffn": 8192},
    {"hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14_336},
    {"hidden": 5120, "heads": 40, "kv_heads": 8, "ffn": 13_824},
)
OF_BLOCKS = ((1024, 1), (2048, 1), (4096, 1), (8192, 1), (2048, 4))  # tokens, micro-batch


def blocks(*, dry: bool) -> Report:
    """Blocks for engine/data/profiles, whose columns these are."""
    shapes = ({"hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 128},) if dry else BLOCKS
    rows = []
    for shape, (seq, micro_batch) in itertools.product(shapes, ((64, 1),) if dry else OF_BLOCKS):
        request = {
            "model": {"family": "llama", "layers": 3, "vocab": 256, "seq": seq, **shape},
            "stages": 3,
            "micro_batch": micro_batch,
            "device": "cpu" if dry else "cuda",
            "dtype": "bf16",
            "repeats": 6,
        }
        times = profile_stage(parse(ProfileRequest, request), 1).times_ms
        medians = (times[op][0] for op in ("forward", "recompute", "backward"))
        rows.append(("llama", *shape.values(), seq, micro_batch, *medians))
    columns = (
        "family",
        "hidden",
        "heads",
        "kv_heads",
        "ffn",
        "seq",
        "micro_batch",
        "forward_ms",
        "recompute_ms",
        "backward_ms",
    )
    return Report(part="blocks", tables=[Table(title="Blocks, bf16", columns=columns, rows=rows)])


def _device(dry: bool) -> tuple[str, Device]:
    """The catalogue's GPU that this one is, and what the cost model has it reach."""
    name = "h100"
    if not dry:
        import torch

        label = torch.cuda.get_device_name(0).lower()
        gpu_type = next((known for known in catalogue() if known.split("-")[0] in label), None)
        if gpu_type is None:
            raise InputError("GPU", label, f"one of the catalogue: {', '.join(catalogue())}")
        name = gpu_type
    return name, Device.of(gpu(name), shipped())


def _request(seq: int, dry: bool) -> ProfileRequest:
    shape = {**(SMALL if dry else SHAPE), "seq": seq}
    request = {"model": shape, "stages": 3, "device": "cpu" if dry else "cuda", "dtype": "bf16", "repeats": 6}
    return parse(ProfileRequest, request)


def _measured(seq: int, stage: int, dry: bool) -> dict[str, float]:
    """Median ms by op of a stage: 1 is a layer, 2 a layer and the head."""
    return {op: median for op, (median, _) in profile_stage(_request(seq, dry), stage).times_ms.items()}


def _row(
    part: str, op: str, seq: int, measured: float, seconds_of_op: float
) -> tuple[str, str, int, float, float, str]:
    return part, op, seq, measured, seconds_of_op, f"{seconds_of_op / measured - 1:+.0%}"


def _forward_flops(shape: Transformer) -> float:
    """FLOPs of a layer's products, attention counted whole as the MFU of PaLM (appendix B) counts it."""
    return 2.0 * shape.layer_weights * shape.seq + 4.0 * shape.hidden * shape.seq**2
