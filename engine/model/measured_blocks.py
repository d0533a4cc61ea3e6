"""Blocks measured on real GPUs (engine/data/profiles): the planner prefers them to rooflines."""

import csv
from dataclasses import replace
from functools import cache
from importlib.resources import files

from engine.model.kernels import Pass
from engine.model.transformer import OWN_FAMILIES, Transformer, is_own

Key = tuple[str, int, int, int, int, int, int]  # family, hidden, heads, kv_heads, ffn, seq, micro-batch


def measured_block(gpu: str, model: Transformer, micro_batch: int, *, recompute: bool) -> Pass | None:
    """Seconds of a dense block on one GPU, if this very shape was measured on this type of GPU.

    recompute : the whole block is computed again before its backward pass.
    """
    own = OWN_FAMILIES.get(model.family)  # tied or not, blocks are the same
    if own is None or not is_own(replace(model, features=replace(model.has, tied=own.tied))):
        return None
    shape = model.hidden, model.heads, model.kv_heads, model.ffn, model.seq, micro_batch
    row = _rows(gpu).get((model.family, *shape))
    if row is None:
        return None
    forward_s, recompute_s, backward_s = row
    return Pass(forward_s=forward_s, backward_s=backward_s, recompute_s=recompute_s if recompute else 0.0)


@cache
def _rows(gpu: str) -> dict[Key, tuple[float, float, float]]:
    """Forward, recompute and backward seconds by shape."""
    file = files("engine").joinpath(f"data/profiles/{gpu}.csv")
    if not file.is_file():
        return {}
    rows: dict[Key, tuple[float, float, float]] = {}
    for row in csv.DictReader(file.read_text(encoding="utf-8").splitlines()):
        hidden, heads, kv_heads, ffn = (int(row[name]) for name in ("hidden", "heads", "kv_heads", "ffn"))
        key = row["family"], hidden, heads, kv_heads, ffn, int(row["seq"]), int(row["micro_batch"])
        forward, recompute, backward = (
            float(row[f"{name}_ms"]) / 1e3 for name in ("forward", "recompute", "backward")
        )
        rows[key] = forward, recompute, backward
    return rows
