"""The share of its nominal rates that a machine reaches: one set for all models, fitted to published runs."""

import csv
import json
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """Reached share of the nominal rate, above 0 and at most 1.

    gemm : of a matrix product's peak FLOP/s.
    hbm : of device memory bandwidth.
    hb, nic : of a GPU's bandwidth inside the HB domain, and through its NIC.
    """

    gemm: float
    hbm: float
    hb: float
    nic: float

    def __post_init__(self) -> None:
        for name in ("gemm", "hbm", "hb", "nic"):
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} {getattr(self, name)}: must be above 0 and at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedRun:
    """One run of Korthikanti et al. (2022), table 5: its shape, layout and measured seconds.

    full_s : with full recomputation; selective_s : with selective recomputation and sequence parallelism.
    mfu, hfu : percent, of the latter.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    tp: int
    pp: int
    dp: int
    interleave: int
    micro_batch: int
    batch: int
    full_s: float
    selective_s: float
    mfu: float
    hfu: float


@cache
def shipped() -> Efficiency:
    """The shipped set: fitted to the eight times of `published_runs` by benchmarks/efficiency.py."""
    return Efficiency(**json.loads(_text("efficiency.json")))


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """The runs that the shipped set is fitted to (engine/data/korthikanti/SOURCE.md)."""
    rows = csv.DictReader(_text("runs.csv").splitlines())
    kinds: dict[str, Any] = {field.name: field.type for field in fields(PublishedRun)}
    return tuple(PublishedRun(**{name: kinds[name](text) for name, text in row.items()}) for row in rows)


def _text(name: str) -> str:
    return files("engine").joinpath(f"data/korthikanti/{name}").read_text(encoding="utf-8")
