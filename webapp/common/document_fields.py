"""Form fields made from fields of the engine's documents, which alone say ranges, choices and defaults."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen
from django import forms
from django.core.exceptions import ValidationError
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from engine.inputs import MOST_WHOLE


@dataclass(frozen=True, slots=True)
class MoreThan:
    """Refuses a number that is not greater than `bound`: Django's fields know inclusive ends only."""

    bound: float

    def __call__(self, value: float) -> None:
        if not value > self.bound:
            raise ValidationError(f"Enter a number greater than {self.bound:g}.", code="min_value")


@dataclass(frozen=True, slots=True)
class LessThan:
    """Refuses a number that is not less than `bound`."""

    bound: float

    def __call__(self, value: float) -> None:
        if not value < self.bound:
            raise ValidationError(f"Enter a number less than {self.bound:g}.", code="max_value")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a document takes in a field.

    kind : int, float, str or bool.
    least, most : both allowed; None: none.  above, below : neither allowed; None: none.
    longest : most characters.  choices : all that is allowed; empty: anything of the kind.
    optional : whether it may be left out with nothing in its place.  default : where it is left out.
    """

    kind: type
    least: float | None
    most: float | None
    above: float | None
    below: float | None
    longest: int | None
    choices: tuple[Any, ...]
    optional: bool
    default: Any


def document_field(
    model: type[BaseModel],
    path: str,
    *,
    scale: float = 1,
    whole: bool = False,
    least: float | None = None,
    most: float | None = None,
    words: Mapping[Any, str] | None = None,
    empty: str | None = None,
    **kwargs: Any,
) -> Any:
    """A form field that takes what a document takes.

    It may be left empty where the document's field may be None, unless `required` is given; else it begins
    with the document's default, unless `initial` is given. ``{default}`` in `help_text` is that default.

    Parameters
    ----------
    path : of the document's field: ``optimizer.lr``; of one of a few numbers with its index: ``betas.0``.
    scale : what a number of the document is multiplied by in the form: 100 for a share in per cent.
    whole : the form takes whole numbers only, whatever the document takes.
    least, most : a narrower range of the form's own, in the form's unit.
    words : of a choice, what the form calls each value, in the order of the form.
    empty : of a choice, what the form calls it to choose nothing.

    Raises
    ------
    LookupError
        The document has no such field, or `words` names what the document refuses.
    """
    limits = limits_of(model, path)
    default = _plain(limits.default) if limits.kind in (int, float) else limits.default
    if "{default}" in kwargs.get("help_text", ""):
        kwargs["help_text"] = kwargs["help_text"].format(default=default)
    kwargs.setdefault("required", not (limits.optional or limits.kind is bool or empty is not None))
    kwargs.setdefault("initial", default if kwargs["required"] or limits.kind is bool else None)
    if limits.choices:
        return _choice(limits, words or {value: str(value) for value in limits.choices}, empty, kwargs)
    if limits.kind is bool:
        return forms.BooleanField(**kwargs)
    if limits.kind is str:
        return forms.CharField(**{"max_length": limits.longest, **kwargs})
    return _number(limits, scale, whole or limits.kind is int, (least, most), kwargs)


def limits_of(model: type[BaseModel], path: str) -> Limits:
    """What `model` takes at `path`. Raises LookupError where it has no such field."""
    first, _, rest = path.partition(".")
    info = model.model_fields[first]
    parts = [*info.metadata, *_parts(info.annotation)]
    default: Any = None if info.is_required() else info.get_default(call_default_factory=False)
    if rest.isdecimal():  # of a tuple
        parts, default = list(_parts(get_args(info.annotation)[int(rest)])), default[int(rest)]
    elif rest:
        inner = rest.partition(".")[0]
        models = [part for part in parts if isinstance(part, type) and issubclass(part, BaseModel)]
        owner = next((one for one in models if inner in one.model_fields), None)
        if owner is None:
            raise LookupError(f"{model.__name__}.{first} has no field {inner}")
        return limits_of(owner, rest)
    return Limits(
        kind=next((part for part in parts if part in (int, float, str, bool)), str),
        least=max((_bound(part.ge) for part in parts if isinstance(part, Ge)), default=None),
        most=min((_bound(part.le) for part in parts if isinstance(part, Le)), default=None),
        above=max((_bound(part.gt) for part in parts if isinstance(part, Gt)), default=None),
        below=min((_bound(part.lt) for part in parts if isinstance(part, Lt)), default=None),
        longest=min((part.max_length for part in parts if isinstance(part, MaxLen)), default=None),
        choices=next((part for part in parts if isinstance(part, tuple)), ()),
        optional=NoneType in parts,
        default=default,
    )


def _bound(end: Any) -> float:
    """An end of a range of numbers; annotated_types calls it anything that compares."""
    return cast(float, end)


def _parts(annotation: Any) -> Iterator[Any]:
    """Types and constraints of an annotation, and a tuple of the values that a Literal lists. Of a number or
    several, those of the number.
    """
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        for note in args[1:]:
            yield from note.metadata if isinstance(note, FieldInfo) else (note,)
        yield from _parts(args[0])
    elif origin in (Union, UnionType):
        for arg in args:
            yield from _parts(arg)
    elif origin is Literal:
        yield args
    elif origin is None:
        yield annotation


def _choice(limits: Limits, words: Mapping[Any, str], empty: str | None, kwargs: dict[str, Any]) -> Any:
    if unknown := set(words) - set(limits.choices):
        raise LookupError(f"not among {limits.choices}: {unknown}")
    nothing = [] if empty is None else [("", empty)]
    choices = [*nothing, *words.items()]
    if all(isinstance(value, int) for value in words):
        return forms.TypedChoiceField(choices=choices, coerce=int, **kwargs)
    return forms.ChoiceField(choices=choices, **kwargs)


def _number(
    limits: Limits,
    scale: float,
    whole: bool,
    own: tuple[float | None, float | None],
    kwargs: dict[str, Any],
) -> Any:
    lows = [limits.least * scale] if limits.least is not None else []
    highs = [limits.most * scale] if limits.most is not None else [MOST_WHOLE] if whole else []
    low = max([*lows, *(end for end in own[:1] if end is not None)], default=None)
    high = min([*highs, *(end for end in own[1:] if end is not None)], default=None)
    low, high = _plain(low), _plain(high)
    if whole:
        return forms.IntegerField(min_value=low, max_value=high, **kwargs)
    bounds: dict[str, MoreThan | LessThan] = {}
    if limits.above is not None and (low is None or low <= limits.above * scale):
        low, bounds["min"] = None, MoreThan(limits.above * scale)
    if limits.below is not None and (high is None or high >= limits.below * scale):
        high, bounds["max"] = None, LessThan(limits.below * scale)
    field = forms.FloatField(min_value=low, max_value=high, validators=list(bounds.values()), **kwargs)
    for end, check in bounds.items():
        field.widget.attrs.setdefault(end, f"{check.bound:g}")
    return field


def _plain(number: float | None) -> Any:
    """Whole numbers without a point, as pages and messages show them."""
    return int(number) if number is not None and float(number).is_integer() else number
