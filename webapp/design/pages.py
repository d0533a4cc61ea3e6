"""Pages that answer a document of the engine at once: a form whose address is the permalink, tables, CSV.

A page is a `DesignPage` and one line in urls.py. Nothing is saved: the address holds the question.
"""

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django import forms
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render

from engine.errors import InputError
from webapp.common.additions import extended
from webapp.common.figures import Fact, Figures, download
from webapp.common.formkit import Sectioned


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
        query = request.GET.copy()
        form_of, table = query.pop("as", [""])[0], query.pop("table", [""])[0]
        form = self.form(query or first_values(self.form))
        if not form.is_valid():
            return self._render(request, form, {}, status=422)
        if form_of == "document":
            return download(json.dumps(form.document, indent=2), "application/json", f"{self.command}.json")
        try:
            answer = copy.deepcopy(_answered(self, json.dumps(form.question)))
        except InputError as error:  # of values that do not go together, which only the answer shows
            form.take_input_error(error)
            return self._render(request, form, {}, status=422)
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
            "title": self.title,
            "lead": self.lead,
            "form": form,
            "sections": form.sections,
            "script": self.script,
            "answer": answer,
            "query": f"{query}&" if query else "",
            "facts": self.facts(answer) if answer else [],
            "tables": tables,
            "matrix": self.heat(answer) if answer else None,
            "charts": self.charts(answer) if answer else None,
            "command": f"meridian {self.command} {self.command}.json",
            "document_name": f"{self.command}.json",
            "document_url": f"?{query}&as=document" if query else "?as=document",
        }
        name = f"design-{self.command}"
        context = extended(name, request, {**context, "additions_at": f"{name}:actions"})
        return render(request, "design/design.html", context, status=status)


@lru_cache(maxsize=64)  # a page and each of its files show one answer
def _answered(page: DesignPage, document: str) -> dict[str, Any]:
    return page.answer(json.loads(document))


def first_values(form_class: type[DesignForm]) -> dict[str, Any]:
    """What the form holds before anybody has filled it in: an example that has an answer."""
    fields = form_class.base_fields
    return {name: field.initial for name, field in fields.items() if field.initial is not None}
