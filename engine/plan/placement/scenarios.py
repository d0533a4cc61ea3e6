"""The five cases of DT-FM §4: 64 V100 on networks from one data centre to the whole world.

If the text and the authors' code differ, the text is followed: two campuses have 10 Gbps inside (the code: 5)
and 10 ms between them (11). Case 2 names 4 machines of 4 GPUs and 32 of one, which is 48 GPUs; it takes 8 of
the former for the 64 of every case, as the code does. California of case 4 is in regional.csv only.
"""

import csv
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine.inputs import nearest

Floats = NDArray[np.float64]

STAGES, REPLICAS = 8, 8
# GPT3-XL as in the paper's smallest setting: 24 layers of width 2,048, sequences of 2,048, batches of 1,024.
HIDDEN, SEQ, BATCH, LAYERS, FP16_BYTES = 2048, 2048, 1024, 24, 2
WORLD = ("Oregon", "Virginia", "Ohio", "Tokyo", "Seoul", "London", "Frankfurt", "Ireland")
US = ("Virginia", "Oregon", "California", "Ohio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A network of 64 devices.

    locations : the machine, campus or region of each device.
    """

    name: str
    title: str
    latency_ms: Floats
    bandwidth_gbps: Floats
    locations: tuple[str, ...]


def layer_parameters() -> int:
    """Parameters of one transformer block, 12·H² + 13·H."""
    return 12 * HIDDEN**2 + 13 * HIDDEN


def dp_bytes(layers: int = LAYERS) -> int:
    """c_DP: the gradients of one stage, in fp16."""
    return layers // STAGES * layer_parameters() * FP16_BYTES


def pp_bytes(batch: int = BATCH) -> int:
    """c_PP: the activations that one pipeline hands on in one direction in an iteration, in fp16."""
    return batch // REPLICAS * SEQ * HIDDEN * FP16_BYTES


def names() -> tuple[str, ...]:
    """The cases' names, in the paper's order."""
    return ("on-demand", "spot", "multi-dc", "regional", "worldwide")


@lru_cache
def case(name: str) -> Case:
    """The case of that name.

    Raises
    ------
    InputError
        Unknown name; the message has the nearest known one.
    """
    makers = dict(zip(names(), (_on_demand, _spot, _multi_dc, _regional, _worldwide), strict=True))
    if name not in makers:
        raise InputError("scenario", name, "unknown scenario, " + nearest(str(name), names()))
    return makers[name]()


def fill_in(document: dict[str, Any]) -> dict[str, Any]:
    """`document` with the values of its `scenario` for all fields that it lacks.

    Raises InputError for an unknown scenario.
    """
    name = document["scenario"]
    if not isinstance(name, str):
        raise InputError("scenario", name, "must be a name: " + ", ".join(names()))
    network = case(name)
    given: dict[str, Any] = {
        "latency_ms": network.latency_ms,
        "bandwidth_gbps": network.bandwidth_gbps,
        "stages": STAGES,
        "data_parallel": REPLICAS,
    }
    if document.get("model") is None:
        given |= {"dp_bytes": dp_bytes(), "pp_bytes": pp_bytes()}
    return {**given, **document}


def aws_regions() -> dict[tuple[str, str], tuple[float, float]]:
    """One-way delay (ms) and bandwidth (Gbps) between the ten regions that DT-FM measured, both ways."""
    return _read("aws_regions.csv")


def _on_demand() -> Case:
    locations = tuple(f"machine {i // 8}" for i in range(64))
    same = _same(locations)
    return _case("on-demand", "Data center on demand", locations, 0.0, np.where(same, 100.0, 25.0))


def _spot() -> Case:
    fours = tuple(f"4-GPU machine {i // 4}" for i in range(32))
    locations = (*fours, *(f"1-GPU machine {i}" for i in range(32)))
    return _case(
        "spot", "Data center spot instances", locations, 0.0, np.where(_same(locations), 100.0, 10.0)
    )


def _multi_dc() -> Case:
    locations = ("Ohio",) * 32 + ("Virginia",) * 32
    same = _same(locations)
    latency, bandwidth = np.where(same, 0.0, 10.0), np.where(same, 10.0, 1.12)
    return _case("multi-dc", "Multiple data centers", locations, latency, bandwidth)


def _regional() -> Case:
    locations = tuple(region for region in US for _ in range(16))
    return _case("regional", "Regional geo-distributed", locations, *_between(locations, "regional.csv"))


def _worldwide() -> Case:
    locations = tuple(region for region in WORLD for _ in range(8))
    return _case(
        "worldwide", "World-wide geo-distributed", locations, *_between(locations, "aws_regions.csv")
    )


def _case(
    name: str, title: str, locations: tuple[str, ...], latency: float | Floats, bandwidth: Floats
) -> Case:
    full = np.broadcast_to(np.asarray(latency, dtype=np.float64), bandwidth.shape).copy()
    for matrix in (full, bandwidth):
        matrix.setflags(write=False)
    return Case(name=name, title=title, latency_ms=full, bandwidth_gbps=bandwidth, locations=locations)


def _same(locations: tuple[str, ...]) -> NDArray[np.bool_]:
    column = np.array(locations)
    return column[:, None] == column[None, :]


def _between(locations: tuple[str, ...], table: str) -> tuple[Floats, Floats]:
    """Latency and bandwidth of every two devices; within a region 5 ms and 2 Gbps (§4)."""
    pairs = _read(table)
    pairs.update({(location, location): (5.0, 2.0) for location in locations})
    both = np.array([[pairs[a, b] for b in locations] for a in locations])
    return both[:, :, 0].copy(), both[:, :, 1].copy()


def _read(table: str) -> dict[tuple[str, str], tuple[float, float]]:
    text = files("engine").joinpath(f"data/dtfm/{table}").read_text(encoding="utf-8")
    pairs = {}
    for row in csv.DictReader(text.splitlines()):
        figures = (float(row["delay_ms"]), float(row["bandwidth_gbps"]))
        a, b = row["region_a"], row["region_b"]
        pairs[a, b] = pairs[b, a] = figures
    return pairs
