"""Measured seconds of each layer of a model, as Sailor's profiler writes them, and the sizes of its layers.

A profile is a table: model → GPU → micro-batch → tp → layer → [forward, backward, update] seconds. The layers
are all that a model computes, numbered from 0: the embedding, the blocks, the output matrix. The times of a
stage are the sums over its layers. Tensor-parallel collectives are part of what was measured.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import InputError

PASSES = 3  # forward, backward, update

# Taken by CUDA, NCCL and the framework on each GPU, as Sailor's memory model has it.
FRAMEWORK_BYTES = 5.06e9
# As in Sailor's memory model of fp32 training; weight, gradient and two moments of Adam are 16 of them.
PARAMETER_BYTES = 24
GRADIENT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSeconds:
    """Seconds of one stage: forward and backward of a microbatch, update of an iteration."""

    forward_s: float
    backward_s: float
    update_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSize:
    """One layer on one GPU of its tp: parameters, and bytes of one sequence.

    output_bytes : what the layer hands to the next one.  kept_bytes : what it keeps for its backward pass.
    """

    parameters: float
    output_bytes: float
    kept_bytes: float


Rows = tuple[tuple[float, float, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerProfiles:
    """A profile's rows by model, GPU, micro-batch and tp; a row per layer, in seconds."""

    rows: Mapping[str, Mapping[str, Mapping[int, Mapping[int, Rows]]]]

    def of(self, model: str, gpu: str, micro_batch: int, tp: int) -> Rows:
        """The [forward, backward, update] seconds of each layer.

        Raises
        ------
        InputError
            The profile lacks the model, the GPU, the micro-batch or the tp; it names those that there are.
        """
        gpus = _named(self.rows, model, "model", "profiles")
        sizes = _named(gpus, gpu, "gpu", f"profiles of {model}")
        degrees = _named(sizes, micro_batch, "micro_batch", f"profiles of {model} on {gpu}")
        at = f"profiles of {model} on {gpu} at micro-batch {micro_batch}"
        return _named(degrees, tp, "tp", at)

    def stage(self, model: str, gpu: str, micro_batch: int, tp: int, layers: Sequence[int]) -> StageSeconds:
        """The seconds of a stage: sums over its `layers`. Raises InputError as :meth:`of`."""
        rows = self.of(model, gpu, micro_batch, tp)
        known = range(len(rows))
        picked = [_at(rows, layer, known, model) for layer in layers]
        forward_s, backward_s, update_s = (math.fsum(row[i] for row in picked) for i in range(PASSES))
        return StageSeconds(forward_s=forward_s, backward_s=backward_s, update_s=update_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSizes:
    """The sizes of each layer by model and tp."""

    rows: Mapping[str, Mapping[int, tuple[LayerSize, ...]]]

    def of(self, model: str, tp: int) -> tuple[LayerSize, ...]:
        """The size of each layer. Raises InputError as :meth:`LayerProfiles.of`."""
        return _named(_named(self.rows, model, "model", "sizes"), tp, "tp", f"sizes of {model}")

    def stage(self, model: str, tp: int, layers: Sequence[int]) -> tuple[LayerSize, ...]:
        """The sizes of a stage's `layers`. Raises InputError as :meth:`of`."""
        rows = self.of(model, tp)
        return tuple(_at(rows, layer, range(len(rows)), model) for layer in layers)


def read_profiles(table: Any) -> LayerProfiles:
    """The profile in a JSON value of the form above.

    Raises
    ------
    InputError
        A level is not an object, a micro-batch, tp or layer is not a whole number, layers have gaps, or a
        time is not a number above 0.
    """
    return LayerProfiles(
        rows={
            model: {
                gpu: {
                    size: {tp: _rows(layers, path) for tp, layers, path in _numbered(degrees, at_size)}
                    for size, degrees, at_size in _numbered(sizes, at_gpu)
                }
                for gpu, sizes, at_gpu in _entries(gpus, at_model)
            }
            for model, gpus, at_model in _entries(table, "")
        }
    )


def read_sizes(table: Any) -> LayerSizes:
    """The sizes in a JSON value: model → tp → layer → {params_floats, act_output_bytes, act_mem_bytes}.

    Other fields are ignored. Raises InputError as :func:`read_profiles`.
    """
    return LayerSizes(
        rows={
            model: {
                tp: tuple(_size(size, path) for _, size, path in _in_order(layers, at))
                for tp, layers, at in _numbered(degrees, at_model)
            }
            for model, degrees, at_model in _entries(table, "")
        }
    )


def _named(table: Mapping[Any, Any], name: str | int, field: str, what: str) -> Any:
    if name not in table:
        have = ", ".join(f"{key:,}" if isinstance(key, int) else key for key in sorted(table))
        raise InputError(field, name, f"no such {what}; there are: {have}")
    return table[name]


def _at(rows: Sequence[Any], layer: int, known: range, model: str) -> Any:
    if layer not in known:
        raise InputError("layers", layer, f"{model} has layers 0 to {len(known) - 1}")
    return rows[layer]


def _entries(table: Any, at: str) -> Iterable[tuple[str, Any, str]]:
    if not isinstance(table, Mapping) or not table:
        raise InputError(at, table, "must be an object that is not empty")
    return [(name, value, f"{at}.{name}".lstrip(".")) for name, value in table.items()]


def _numbered(table: Any, at: str) -> Iterable[tuple[int, Any, str]]:
    """The entries of an object whose names are whole numbers."""
    entries = _entries(table, at)
    for name, _, path in entries:
        if not (name.isascii() and name.isdecimal() and len(name) < 10):
            raise InputError(path, name, "must be named by a whole number")
    return [(int(name), value, path) for name, value, path in entries]


def _in_order(layers: Any, at: str) -> Iterable[tuple[int, Any, str]]:
    entries = sorted(_numbered(layers, at), key=lambda entry: entry[0])
    numbers = [number for number, _, _ in entries]
    if numbers != list(range(len(numbers))):
        raise InputError(at, numbers, f"must have layers 0 to {len(numbers) - 1}, each once")
    return entries


def _rows(layers: Any, at: str) -> Rows:
    return tuple(_row(row, path) for _, row, path in _in_order(layers, at))


def _row(row: Any, at: str) -> tuple[float, float, float]:
    if not isinstance(row, list | tuple) or len(row) != PASSES:
        raise InputError(at, row, "must be [forward, backward, update] in seconds")
    forward_s, backward_s, update_s = (_amount(row[i], f"{at}[{i}]") for i in range(PASSES))
    return forward_s, backward_s, update_s


def _size(size: Any, at: str) -> LayerSize:
    if not isinstance(size, Mapping):
        raise InputError(at, size, "must be an object with params_floats, act_output_bytes, act_mem_bytes")
    names = ("params_floats", "act_output_bytes", "act_mem_bytes")
    parameters, output, kept_bytes = (_amount(size.get(name), f"{at}.{name}") for name in names)
    return LayerSize(parameters=parameters, output_bytes=output, kept_bytes=kept_bytes)


def _amount(value: Any, at: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e15:
        raise InputError(at, value, "must be a number, at least 0")
    return float(value)
