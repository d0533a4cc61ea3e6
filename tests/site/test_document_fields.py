"""Form fields made from fields of the engine's documents take what the documents take."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from django import forms
from django.core.exceptions import ValidationError
from pydantic import Field

from engine.inputs import MOST_WHOLE, Count, Document, Flag, NonNegative, Number, Positive
from webapp.common.document_fields import document_field, limits_of

ROOT = Path(__file__).resolve().parents[2]


Share = Annotated[Number, Field(ge=0, lt=1)]


class Part(Document):
    ratio: Annotated[NonNegative, Field(ge=0.01, le=10)] = 0.1
    wait_s: Annotated[Positive, Field(le=60)] = 12.0


class Whole(Document):
    count: Annotated[Count, Field(le=100)]
    any_count: Count | None = None
    several: Annotated[Count, Field(le=8)] | list[Annotated[Count, Field(le=8)]] = 1
    kind: Literal["a", "b"] = "a"
    nbytes: Literal[2, 4] = 4
    name: Annotated[str, Field(min_length=1, max_length=5)] | None = None
    on: Flag = True
    both: tuple[Share, Share] = (0.9, 0.999)
    part: Part | None = None


def takes(field: forms.Field, value: Any) -> bool:
    try:
        field.clean(value)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(
    ("path", "given", "taken", "refused"),
    [
        ("count", {}, ["1", "100"], ["0", "101", "1.5", ""]),
        ("count", {"most": 10}, ["10"], ["11"]),
        ("any_count", {}, ["1", str(MOST_WHOLE), ""], ["0", str(MOST_WHOLE + 1), "9" * 400]),
        ("several", {}, ["8"], ["9"]),
        ("kind", {}, ["a", "b"], ["c", ""]),
        ("kind", {"words": {"b": "B"}, "empty": "As it is"}, ["b", ""], ["a"]),
        ("nbytes", {}, ["2", "4"], ["8"]),
        ("name", {}, ["12345", ""], ["123456", "\0"]),
        ("both.1", {}, ["0", "0.999"], ["1", "-0.1", ""]),
        ("part.ratio", {}, ["0.01", "10"], ["0", "10.1", "nan", "1e400"]),
        ("part.ratio", {"scale": 100, "whole": True}, ["1", "1000"], ["0", "1001"]),
        ("part.wait_s", {}, ["60", "1e-300"], ["0", "-1", "61"]),
        ("part.wait_s", {"least": 0.5}, ["0.5"], ["0.4"]),
    ],
)
def test_a_field_takes_what_the_document_takes(
    path: str, given: dict[str, Any], taken: list[str], refused: list[str]
) -> None:
    field = document_field(Whole, path, **given)
    assert [value for value in taken if not takes(field, value)] == []
    assert [value for value in refused if takes(field, value)] == []


def test_a_field_begins_with_the_default_or_names_it() -> None:
    assert document_field(Whole, "nbytes").clean("2") == 2
    assert document_field(Whole, "kind").initial == "a"
    assert document_field(Whole, "on").initial is True
    optional = document_field(Whole, "part.wait_s", required=False, help_text="Empty: {default} s.")
    assert (optional.initial, optional.help_text) == (None, "Empty: 12 s.")


def test_a_path_that_the_document_has_not_is_refused() -> None:
    assert limits_of(Whole, "part.wait_s").above == 0
    for path in ("parts", "part.wait", "count.more"):
        with pytest.raises(LookupError):
            limits_of(Whole, path)
    with pytest.raises(LookupError, match="c"):
        document_field(Whole, "kind", words={"c": "C"})


def test_a_range_of_a_document_is_not_repeated() -> None:
    """The number fields of forms that ask for documents are the documents' own, but for these."""
    own = {"message_mb", "each", "batch", "plan", "option"}  # of the pages alone: no document has them
    apps = ("planning", "placement", "schedules", "design", "jobs")
    sources = [path.read_text() for app in apps for path in (ROOT / "webapp" / app).glob("*.py")]
    written = {
        name for text in sources for name in re.findall(r"(\w+) = forms\.(?:Integer|Float)Field", text)
    }
    assert written == own
