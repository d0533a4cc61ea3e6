"""Tensors in a folder as transformers saves a model: one safetensors file, or several and their index.

Only the files that hold a tensor that is asked for are opened, and nothing else is read from them.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.documents import read_json_file
from engine.errors import InputError, reason_of

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
READABLE = {"F64", "F32", "BF16", "F16"}  # as safetensors names them

Shapes = dict[str, tuple[int, ...]]


def read_tensors(folder: Path, shapes: Shapes, *, field: str) -> Iterator[tuple[str, Tensor]]:
    """The tensors that `shapes` names, one after the other, in host memory and in their own types.

    field : of the document that names the folder.

    Raises
    ------
    InputError
        A file or tensor is missing or damaged, or is of another shape or type than it should be.
    """
    with ExitStack() as opened:
        for file, names in _by_file(folder, shapes, field).items():
            try:
                tensors = opened.enter_context(safe_open(folder / file, framework="pt"))
                for name in names:
                    yield name, _checked(tensors, name, shapes[name])
            except FileNotFoundError:
                raise InputError(field, str(folder / file), "no such file") from None
            except (SafetensorError, OSError) as error:
                raise InputError(field, str(folder / file), f"cannot be read ({reason_of(error)})") from None


def names_in(folder: Path, *, field: str) -> frozenset[str]:
    """The names of all tensors in a folder. Raises InputError where it has no weights or no sound index."""
    if (folder / INDEX).is_file():
        return frozenset(_index(folder, field))
    try:
        with safe_open(folder / _single(folder, field), framework="pt") as tensors:
            return frozenset(tensors.keys())
    except (SafetensorError, OSError) as error:
        raise InputError(field, str(folder / SINGLE), f"cannot be read ({reason_of(error)})") from None


def _checked(tensors: safe_open, name: str, shape: tuple[int, ...]) -> Tensor:
    piece = tensors.get_slice(name)
    if tuple(piece.get_shape()) != shape:
        raise InputError(f"tensor {name}", list(piece.get_shape()), f"config.json makes it {list(shape)}")
    if piece.get_dtype() not in READABLE:
        allowed = f"allowed: {', '.join(sorted(READABLE))}"
        raise InputError(f"tensor {name}", piece.get_dtype(), allowed)
    return tensors.get_tensor(name)


def _by_file(folder: Path, shapes: Shapes, field: str) -> dict[str, list[str]]:
    """The names of `shapes` by the file that holds them."""
    if not (folder / INDEX).is_file():
        return {_single(folder, field): list(shapes)}
    place_of = _index(folder, field)
    names_of_file: dict[str, list[str]] = {}
    for name in shapes:
        if name not in place_of:
            raise InputError(field, str(folder), f"{INDEX} has no tensor {name}")
        names_of_file.setdefault(place_of[name], []).append(name)
    return names_of_file


def _single(folder: Path, field: str) -> str:
    if not (folder / SINGLE).is_file():
        raise InputError(field, str(folder), f"has neither {SINGLE} nor {INDEX}")
    return SINGLE


def _index(folder: Path, field: str) -> dict[str, str]:
    """The file of each tensor."""
    try:
        with (folder / INDEX).open("rb") as index:
            place_of = dict(read_json_file(index)["weight_map"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(field, str(folder), f"{INDEX} is no index of safetensors") from None
    for file in place_of.values():
        if not isinstance(file, str) or Path(file).name != file:
            raise InputError(field, str(folder), f"{INDEX} names a file outside the folder: {file}")
    return place_of
