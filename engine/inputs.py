"""What documents hold: the types of their fields, and reading one into its model, with one-line errors."""

import difflib
import math
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, ClassVar, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from engine.errors import InputError

MOST_WHOLE = 2**63 - 1


def _not_a_bool(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("must be a number, not true or false")
    return value


def whole(value: Any) -> Any:
    """`value` as an int where it is a whole number written with a point: JSON has one kind of number, and
    1.0 is 1. Anything else, true and false included, as it is.
    """
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _whole_number(value: Any) -> Any:
    """Whole numbers fit into 64 bits: what counts with them, in C or in a database, takes no more."""
    value = whole(_not_a_bool(value))
    if isinstance(value, int) and abs(value) > MOST_WHOLE:
        raise ValueError(f"must be at most {MOST_WHOLE}, or as far below 0")
    return value


# Numbers as docs/dev/contracts.md means them: finite, and never a bool or a numeric string.
Number = Annotated[float, BeforeValidator(_not_a_bool), Field(strict=True, allow_inf_nan=False)]
NonNegative = Annotated[Number, Field(ge=0, le=1e15)]
Positive = Annotated[Number, Field(gt=0, le=1e15)]
Whole = Annotated[int, BeforeValidator(_whole_number), Field(strict=True)]
Count = Annotated[Whole, Field(ge=1)]
Flag = Annotated[bool, Field(strict=True)]
Limit = Annotated[Count, Field(le=1_000_000_000)]
Index = Annotated[Whole, Field(ge=0)]
# One of many: true and false are refused as well, with pydantic's own words and without a call for each.
Id = Annotated[int, Field(strict=True, ge=0)]


# pydantic keeps the short strings that it has read, up to 16,384 of them. Names of requests never come again,
# and what a tenant sends is to be forgotten: keys alone are kept. TypeAdapters of documents need it as well.
FORGETFUL = ConfigDict(cache_strings="keys")


class Document(BaseModel):
    """Base of every model of a user's document: frozen, and an unknown field is an error."""

    # Built at the first use: a command uses few of the models that it imports.
    model_config = ConfigDict(
        frozen=True, extra="forbid", str_strip_whitespace=True, defer_build=True, **FORGETFUL
    )

    # Fields of docs/dev/contracts.md that a later version brings: refused by name, not as misspelt.
    later_fields: ClassVar[tuple[str, ...]] = ()


D = TypeVar("D", bound=BaseModel)


def parse(model: type[D], data: Any, *, at: str = "") -> D:
    """Return `data` as an instance of `model`.

    Parameters
    ----------
    at : path of `data` inside the user's document, put before the field in errors.

    Raises
    ------
    InputError
        For the first thing that is wrong, with its path as in ``times.forward[3]``.
    """
    if not isinstance(data, dict):
        raise InputError(at or "document", data, "must be an object with named fields")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise input_error(error, model, at) from None


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``did you mean x?`` for the nearest of `known`, or the list of them.

    A name that `word` only adds to, such as h100 in h100-80g, is nearer than one that looks like it, unless
    that one begins with the name too: atlas-fig6 for atlas-fig66, not atlas.
    """
    known, word = list(known), str(word)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    within = [name for name in known if re.match(rf"{re.escape(name)}[^A-Za-z0-9]", word)]
    longest = max(within, key=len, default="")
    if not (close and close[0].startswith(longest)):
        close = [longest] if longest else close
    return f"did you mean {close[0]!r}?" if close else "allowed: " + ", ".join(known)


def input_error(error: ValidationError, model: type[BaseModel], at: str = "") -> InputError:
    """The first thing that is wrong, as `parse` raises it."""
    # An unknown field is usually the cause of what else is wrong (a misspelt required one).
    # Of the branches of a union, the one that went deepest is the one that the user meant.
    problems = sorted(error.errors(), key=lambda e: (e["type"] != "extra_forbidden", -len(e["loc"])))
    problem = problems[0]
    location, owner = _walked(model, problem["loc"])
    field = _path(location, at)
    value = problem["input"]
    if problem["type"] == "extra_forbidden":
        known = _names(owner) if owner else []
        if owner and problem["loc"][-1] in getattr(owner, "later_fields", ()):
            return InputError(field, value, "not available in this version")
        return InputError(field, value, "unknown field, " + nearest(str(problem["loc"][-1]), known))
    if problem["type"] == "missing":
        return InputError(field, None, "required, but missing")
    if problem["type"] == "value_error":
        inner = problem["ctx"]["error"]
        if isinstance(inner, InputError):
            path = f"{field}.{inner.field}" if field and inner.field else field or inner.field
            return InputError(path, inner.value, inner.allowed)
        return InputError(field or "document", value, str(inner))
    if isinstance(value, float) and not math.isfinite(value):
        return InputError(field, value, "must be a finite number")
    if problem["type"] in ("model_type", "dict_type", "model_attributes_type"):
        return InputError(field, value, "must be an object with named fields")
    if problem["type"] in ("too_long", "too_short"):
        context = problem["ctx"]
        bound, limit = ("most", "max_length") if problem["type"] == "too_long" else ("least", "min_length")
        count = context[limit]
        entries = f"{count:,} {'entry' if count == 1 else 'entries'}"
        return InputError(field, value, f"must have at {bound} {entries}, and has {context['actual_length']}")
    message = problem["msg"].replace("Input should be", "must be")
    return InputError(field, value, message[:1].lower() + message[1:])


def _is_branch(part: int | str) -> bool:
    """Pydantic names the branch of a union in the path; users know no such thing."""
    return isinstance(part, str) and (
        part[:1].isupper() or "[" in part or part in {"float", "int", "str", "bool", "constrained-str"}
    )


def _path(parts: Sequence[int | str], at: str) -> str:
    path = at
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else str(part)
    return path


def _names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _walked(
    model: type[BaseModel] | None, parts: Sequence[int | str]
) -> tuple[list[int | str], type[BaseModel] | None]:
    """The parts of a path that users know, and the model that the last one is a field of, or should be."""
    known: list[int | str] = []
    owner = model
    tagged: dict[int | str, type[BaseModel]] = {}  # models of a discriminated union, whose tag comes next
    for part in parts:
        if part in tagged:
            model, tagged = tagged[part], {}
            continue
        if not _is_branch(part):
            known.append(part)
        if not isinstance(part, int):
            owner = model
        if model is None or isinstance(part, int) or part not in model.model_fields:
            continue
        field = model.model_fields[part]
        types = [t for t in _flatten(field.annotation) if isinstance(t, type)]
        models = [t for t in types if issubclass(t, BaseModel)]
        tagged = _tagged(models, field.discriminator)
        model = models[0] if models else None
    return known, owner


def _tagged(models: list[type[BaseModel]], by: Any) -> dict[int | str, type[BaseModel]]:
    if not isinstance(by, str):
        return {model.__name__: model for model in models} if len(models) > 1 else {}
    return {tag: model for model in models for tag in get_args(model.model_fields[by].annotation)}


def _flatten(annotation: Any) -> list[Any]:
    inner = get_args(annotation)
    return [annotation, *[leaf for arg in inner for leaf in _flatten(arg)]]
