"""Pages that answer a document of the engine at once: a form whose address is the permalink, tables, CSV.

A page is a `DesignPage` and one line in design_urls.py. Nothing is saved: the address holds the question.
"""

import copy
import csv
import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from engine.errors import InputError
from webapp.formkit import Sectioned
from webapp.markup import DASH

NUMBER = (int, float)


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column: the value at a dotted `key` × `scale`; decimals None: text."""

    label: str
    key: str
    unit: str = ""
    decimals: int | None = None
    scale: float = 1.0
    wide: bool = False  # left out of a narrow window

    @property
    def is_number(self) -> bool:
        return self.decimals is not None

    def value(self, row: dict[str, Any]) -> Any:
        """The value of a row; None where there is none."""
        found: Any = row
        for part in self.key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        is_number = isinstance(found, NUMBER) and not isinstance(found, bool)
        return found * self.scale if is_number and self.is_number and self.scale != 1 else found

    def text(self, row: dict[str, Any]) -> str:
        """The cell as people read it."""
        value = self.value(row)
        if value is None or value == "":
            return DASH
        return f"{value:,.{self.decimals}f}" if self.is_number and isinstance(value, NUMBER) else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A key figure: what it is, its value with its unit, and what it is to be held against."""

    label: str
    value: str
    unit: str = ""
    beside: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A table of an answer. `name` is a part of the address of its CSV, with the rows past `most` too."""

    name: str
    title: str
    columns: Sequence[Column]
    rows: Sequence[dict[str, Any]]
    note: str = ""
    most: int | None = None
    file_only: bool = False  # drawn in another way on the page

    @property
    def is_cut(self) -> bool:
        """Whether the page leaves rows to the file."""
        return self.most is not None and len(self.rows) > self.most

    @property
    def lines(self) -> list[list[tuple[Column, str]]]:
        """Cells of each row that the page shows, with their columns."""
        return [[(column, column.text(row)) for column in self.columns] for row in self.rows[: self.most]]

    def as_csv(self) -> str:
        """Figures in full precision, units in the head."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([f"{c.label} {c.unit}".strip() for c in self.columns])
        writer.writerows([[c.value(row) for c in self.columns] for row in self.rows])
        return file.getvalue()


class DesignForm(Sectioned, forms.Form):
    """A form whose values make a document of the engine; `document` holds it once the form is valid."""

    document: dict[str, Any]

    @property
    def question(self) -> dict[str, Any]:
        """What the page answers: the engine's document, where the form asks for nothing besides."""
        return self.document

    def compose(self, values: dict[str, Any]) -> dict[str, Any]:
        """The engine's document. Raises InputError where a value cannot be."""
        raise NotImplementedError

    def check(self, document: dict[str, Any]) -> None:
        """Parse the document. Raises InputError, which is shown at its field."""
        raise NotImplementedError

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if not self.errors:
            try:
                self.document = self.compose(cleaned)
                self.check(self.document)
            except InputError as error:
                self.take_input_error(error)
        return cleaned


@dataclass(frozen=True, slots=True, kw_only=True)
class DesignPage:
    """A page: its form, what answers the form's document, what of the answer is shown.

    command : the sub-command of `meridian` that answers the same document.
    tables, facts, charts, heat : of the answer; charts are read by the page's script, heat is a `Matrix`.
    """

    title: str
    lead: str
    command: str
    script: str
    form: type[DesignForm]
    answer: Callable[[dict[str, Any]], dict[str, Any]]
    facts: Callable[[dict[str, Any]], list[Fact]]
    tables: Callable[[dict[str, Any]], list[Figures]]
    charts: Callable[[dict[str, Any]], dict[str, Any]]
    heat: Callable[[dict[str, Any]], Any] = lambda answer: None

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """The page, its document (?as=document) or one of its tables as CSV (?as=csv&table=…)."""
        asked = request.GET.copy()
        form_of, table = asked.pop("as", [""])[0], asked.pop("table", [""])[0]
        form = self.form(asked or first_values(self.form))
        if not form.is_valid():
            return self._render(request, form, {}, status=422)
        if form_of == "document":
            return download(json.dumps(form.document, indent=2), "application/json", f"{self.command}.json")
        answer = copy.deepcopy(_answered(self, json.dumps(form.question)))
        if form_of == "csv":
            return self._csv(answer, table)
        return self._render(request, form, answer)

    def _csv(self, answer: dict[str, Any], name: str) -> HttpResponse:
        for table in self.tables(answer):
            if table.name == name:
                return download(table.as_csv(), "text/csv", f"{self.command}-{name}.csv")
        raise Http404

    def _render(
        self, request: HttpRequest, form: DesignForm, answer: dict[str, Any], status: int = 200
    ) -> HttpResponse:
        query = request.GET.urlencode()
        tables = [table for table in self.tables(answer) if not table.file_only] if answer else []
        context = {
            "title": self.title, "lead": self.lead, "form": form, "sections": form.sections,
            "script": self.script, "answer": answer, "query": f"{query}&" if query else "",
            "facts": self.facts(answer) if answer else [], "tables": tables,
            "matrix": self.heat(answer) if answer else None,
            "charts": self.charts(answer) if answer else None,
            "command": f"meridian {self.command} {self.command}.json",
            "document_name": f"{self.command}.json",
            "document_url": f"?{query}&as=document" if query else "?as=document",
        }  # fmt: skip
        return render(request, "planning/design.html", context, status=status)


@lru_cache(maxsize=64)  # a page and each of its files show one answer
def _answered(page: DesignPage, document: str) -> dict[str, Any]:
    return page.answer(json.loads(document))


def first_values(form_class: type[DesignForm]) -> dict[str, Any]:
    """What the form holds before anybody has filled it in: an example that has an answer."""
    fields = form_class.base_fields
    return {name: field.initial for name, field in fields.items() if field.initial is not None}


def download(text: str, content_type: str, name: str) -> HttpResponse:
    """`text` as a file of that name."""
    response = HttpResponse(text, content_type=content_type)
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
