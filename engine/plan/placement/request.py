"""The document of `meridian place FILE`."""

from functools import cached_property
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from engine.errors import InputError
from engine.inputs import Count, Document, Index, NonNegative, Positive
from engine.model.document import NameOrShape, shape_of
from engine.model.transformer import Transformer
from engine.plan.placement.scenarios import fill_in

Floats = NDArray[np.float64]

MOST_DEVICES = 2048
MOST_EVALUATIONS = 1_000_000
LONGEST_LATENCY_MS = 1e6
SLOWEST_GBPS, FASTEST_GBPS = 1e-9, 1e6
MOST_BATCH = 10_000_000
FP16_BYTES = 2
BYTES = ("dp_bytes", "pp_bytes")


def traffic_of(shape: Transformer, batch: float, *, stages: int, data_parallel: int) -> dict[str, float]:
    """Bytes of a model in fp16: `dp_bytes`, the gradients of a stage, and `pp_bytes`, the activations that a
    pipeline hands on in one direction in an iteration of `batch` sequences.
    """
    return {
        "dp_bytes": float(shape.parameters * FP16_BYTES / stages),
        "pp_bytes": float(batch / data_parallel * shape.seq * shape.hidden * FP16_BYTES),
    }


class PlacementRequest(Document):
    """Devices, the network between them, and a job's traffic over it.

    scenario : one of §4's cases by name, which sets every field that is left out.
    model, batch : what the traffic is of, if no bytes are given: `batch` sequences an iteration, over all
        pipelines.
    """

    scenario: str | None = None
    latency_ms: Any = Field(repr=False)
    bandwidth_gbps: Any = Field(repr=False)
    stages: Annotated[Count, Field(le=MOST_DEVICES)]
    data_parallel: Annotated[Count, Field(le=MOST_DEVICES)]
    model: NameOrShape | None = None
    batch: Annotated[Count, Field(le=MOST_BATCH)] | None = None
    dp_bytes: NonNegative | None = None
    pp_bytes: NonNegative | None = None
    seed: Annotated[Index, Field(le=2**63 - 1)] = 0
    evaluations: Annotated[Count, Field(le=MOST_EVALUATIONS)] | None = None
    seconds: Positive | None = None

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, data: Any) -> Any:
        return fill_in(data) if isinstance(data, dict) and data.get("scenario") is not None else data

    @model_validator(mode="after")
    def _consistent(self) -> "PlacementRequest":
        latency, bandwidth = self.given_latency_ms, self.given_bandwidth_gbps
        devices = len(latency)
        if len(bandwidth) != devices:
            allowed = f"as many rows as latency_ms: {devices} expected, {len(bandwidth)} given"
            raise InputError("bandwidth_gbps", f"{len(bandwidth)} rows", allowed)
        if self.stages * self.data_parallel != devices:
            product = f"{self.stages} × {self.data_parallel} = {self.stages * self.data_parallel}"
            allowed = f"stages × data_parallel is {product}, but the matrices have {devices} devices"
            raise InputError("data_parallel", self.data_parallel, allowed)
        _ = self.traffic
        return self

    @cached_property
    def given_latency_ms(self) -> Floats:
        """The latencies as given, shape (N, N), diagonal 0."""
        return _matrix("latency_ms", self.latency_ms, 0.0, LONGEST_LATENCY_MS, "ms")

    @cached_property
    def given_bandwidth_gbps(self) -> Floats:
        """The bandwidths as given, shape (N, N), diagonal inf."""
        matrix = _matrix("bandwidth_gbps", self.bandwidth_gbps, SLOWEST_GBPS, FASTEST_GBPS, "Gbps")
        np.fill_diagonal(matrix, np.inf)
        return matrix

    @cached_property
    def traffic(self) -> dict[str, float]:
        """`dp_bytes` and `pp_bytes`: as given, else those of the model."""
        given = {name: getattr(self, name) for name in BYTES if getattr(self, name) is not None}
        missing = [name for name in BYTES if name not in given]
        if self.model is None:
            if missing:
                raise InputError(missing[0], None, "required, but missing: or give model and batch")
            if self.batch is not None:
                raise InputError("batch", self.batch, "applies to a model: give model, or leave it out")
            return given
        shape = shape_of(self.model, self.stages)
        if self.batch is None and "pp_bytes" in missing:
            raise InputError("batch", None, "required with model: sequences of an iteration")
        of_model = traffic_of(shape, self.batch or 0, stages=self.stages, data_parallel=self.data_parallel)
        return of_model | given

    @property
    def devices(self) -> int:
        """Number of devices N."""
        return self.stages * self.data_parallel


def _matrix(field: str, value: Any, least: float, most: float, unit: str) -> Floats:
    """A square matrix with a diagonal of zeros; every other entry a number within [least, most]."""
    rows = _square(field, value)
    if isinstance(rows, np.ndarray):
        matrix = rows.astype(np.float64)
    else:
        _numbers_only(field, rows)
        matrix = np.array([[0.0 if j == i else v for j, v in enumerate(row)] for i, row in enumerate(rows)])
    matrix = matrix.reshape(len(rows), len(rows))
    np.fill_diagonal(matrix, least)
    wrong = np.argwhere(~((matrix >= least) & (matrix <= most)))
    if wrong.size:
        i, j = wrong[0]
        allowed = f"a finite number from {least:g} to {most:g} {unit}"
        raise InputError(f"{field}[{i}][{j}]", rows[i][j], allowed)
    np.fill_diagonal(matrix, 0.0)
    return matrix


def _square(field: str, value: Any) -> Any:
    if isinstance(value, np.ndarray) and value.ndim == 2 and value.dtype.kind in "iuf":
        rows: Any = value
    elif isinstance(value, list) and value:
        rows = value
    else:
        raise InputError(field, value, "must be a list of rows, one per device")
    if len(rows) > MOST_DEVICES:
        raise InputError(field, f"{len(rows)} rows", f"at most {MOST_DEVICES} devices")
    for i, row in enumerate(rows):
        if not isinstance(row, list | np.ndarray):
            raise InputError(f"{field}[{i}]", row, "must be a list of numbers")
        if len(row) != len(rows):
            allowed = f"one number per device: {len(rows)} expected, {len(row)} given"
            raise InputError(f"{field}[{i}]", f"{len(row)} entries", allowed)
    return rows


def _numbers_only(field: str, rows: list[list[Any]]) -> None:
    for i, row in enumerate(rows):
        for j, entry in enumerate(row):
            if i != j and not (type(entry) is float or (type(entry) is int and abs(entry) < 1e300)):
                raise InputError(f"{field}[{i}][{j}]", entry, "must be a finite number")
