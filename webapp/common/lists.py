"""The list page: rows that the user may see, filtered, sorted and paged by the server."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any

import django_filters as filters
from django import forms
from django.core.paginator import Paginator
from django.db import connections
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.utils.functional import cached_property

from webapp.common.formkit import plain_selects
from webapp.common.queries import whole
from webapp.common.tables import ChosenColumn

PAGE_SIZES = (25, 50, 100, 200)
PER_PAGE = 50
PER_PAGE_OF_SEVERAL = 15  # where a page shows several tables
COUNT_EXACTLY_TO = 10_000
Action = tuple[str, str]  # URL, label


class Find(filters.CharFilter):
    """The field that finds rows by text in any of `columns`."""

    def __init__(self, *columns: str) -> None:
        super().__init__(label="Find")
        self._columns = columns

    def filter(self, rows: QuerySet[Any], text: str) -> QuerySet[Any]:
        if not text:
            return rows
        return rows.filter(reduce(or_, (Q(**{f"{column}__icontains": text}) for column in self._columns)))


class ListPaginator(Paginator):
    """Counts exactly as far as that is cheap; past COUNT_EXACTLY_TO rows it takes PostgreSQL's own estimate.

    Attributes
    ----------
    estimated : whether `count` is an estimate (it is then over COUNT_EXACTLY_TO).
    """

    estimated = False

    @cached_property
    def count(self) -> int:
        data = self.object_list.data  # type: ignore[attr-defined]  # rows of a table know where they come from
        if not isinstance(data.data, QuerySet):
            return len(data)
        rows = data.data.order_by().values("pk")[: COUNT_EXACTLY_TO + 1].count()
        if rows > COUNT_EXACTLY_TO:
            self.estimated = True
            rows = max(rows, _planned_rows(data.data.order_by().values("pk")))
        data._length = rows  # whoever asks the table for its length does not count again
        return rows


def _planned_rows(rows: QuerySet) -> int:
    """How many rows PostgreSQL's planner expects of the query."""
    sql, values = rows.query.sql_with_params()
    with connections[rows.db].cursor() as cursor:
        cursor.execute(f"EXPLAIN (FORMAT JSON) {sql}", values)
        plan = cursor.fetchone()[0]
    plan = json.loads(plan) if isinstance(plan, str) else plan
    return int(plan[0]["Plan"]["Plan Rows"])


def bound_table(request: HttpRequest, table_class: Any, rows: Any, *, prefix: str = "", **kwargs: Any) -> Any:
    """`rows` as a table that is sorted and paged as the request asks."""
    table = table_class(rows, prefix=prefix, **kwargs)
    order = request.GET.getlist(table.prefixed_order_by_field)
    if order:
        table.order_by = order
    # Not django_tables2's RequestConfig: it lets an address ask for any number of rows.
    per_page = request.GET.get(table.prefixed_per_page_field, "")
    usual = PER_PAGE_OF_SEVERAL if prefix else PER_PAGE
    table.paginator = ListPaginator(table.rows, page_size(per_page, usual))
    table.page = table.paginator.get_page(request.GET.get(table.prefixed_page_field))
    table.page_sizes = PAGE_SIZES if not prefix else ()  # its template sees the table and the request alone
    return table


def page_size(text: str, usual: int = PER_PAGE) -> int:
    """Rows of a page as the address asks for them; what is not offered is the usual number."""
    size = whole(text)
    return size if size in PAGE_SIZES else usual


@dataclass(frozen=True, slots=True, kw_only=True)
class Selected:
    """One value that a filter was set to, and the address of the list without it."""

    label: str
    text: str
    url: str


def selected_filters(request: HttpRequest, filter_set: Any) -> list[Selected]:
    """What the filter is set to, one entry a value; `found` is the bound FilterSet."""
    if not filter_set.form.is_bound or not filter_set.form.is_valid():
        return []
    chosen = []
    for name, field in filter_set.form.fields.items():
        for key, value, text in _values(request.GET, filter_set.form.add_prefix(name), field):
            label = "Find" if name == "q" else str(field.label or name)
            chosen.append(Selected(label=label, text=text, url=_without(request, key, value)))
    return chosen


def _values(query: QueryDict, name: str, field: forms.Field) -> Iterable[tuple[str, str, str]]:
    """(parameter, value, what people read) of one field; a field of several inputs has several parameters."""
    words = _words(field)
    keys = [name] if name in query else [key for key in query if key.startswith(f"{name}_")]
    for key in keys:
        for value in query.getlist(key):
            if value:
                part = key.removeprefix(name).strip("_")
                yield key, value, f"{part} {words(value)}".strip()


def _words(field: forms.Field) -> Any:
    """A function from a value in the address to the words of the field's choice."""
    if isinstance(field, forms.NullBooleanField):
        return lambda value: "yes"
    if isinstance(field, forms.ModelChoiceField):
        return lambda value: str(_chosen(field, value))
    choices = {str(key): str(label) for key, label in getattr(field, "choices", ())}
    return lambda value: choices.get(value, value)


def _chosen(field: forms.ModelChoiceField, value: str) -> Any:
    try:
        return field.to_python(value)
    except forms.ValidationError:
        return value


def _without(request: HttpRequest, key: str, value: str) -> str:
    query = request.GET.copy()
    query.setlist(key, [other for other in query.getlist(key) if other != value])
    for gone in ("page", *([] if query.getlist(key) else [key])):
        query.pop(gone, None)
    return f"{request.path}?{query.urlencode()}" if query else request.path


def matching(filter_set: Any) -> Any:
    """The rows that the bound FilterSet `found` lets through; none where a value of it makes no sense.

    django-filter ignores such a value: a list, and an export, would have rows that nobody asked for.
    """
    if filter_set.form.is_valid():
        return filter_set.qs
    return [] if isinstance(filter_set.queryset, list) else filter_set.queryset.none()


def list_page(
    request: HttpRequest,
    *,
    title: str,
    rows: Any,
    filter_class: Any,
    table_class: Any,
    empty: str,
    create: tuple[str, str] | None = None,
    actions: Sequence[Action] = (),
    note: str = "",
    bulk: str = "",
    compare: str = "",
    chosen: str = "",
    template: str = "components/list.html",
    context: dict[str, Any] | None = None,
) -> HttpResponse:
    """Render components/list.html, or a `template` that extends it.

    Parameters
    ----------
    create : (URL name, label) of the button for a new row.
    actions : further buttons of the title row.
    note : one line next to the title.
    bulk : what the names of the addresses begin with that archive, restore and delete several rows, as
        "planning:plan"; empty: there are none, or the user may not.
    compare : URL name of the page that takes several rows, posted as `pk`, and compares them.
    chosen : instead of both, the template of another form `bulk` for the rows that are ticked.
    context : what else the template wants.
    """
    filter_set = filter_class(request.GET, queryset=rows, request=request)
    plain_selects(filter_set.form)
    shown: dict[str, Any] = {}
    if bulk or compare or chosen:
        shown = {"extra_columns": [("chosen", ChosenColumn())], "sequence": ("chosen", "...")}
    table = bound_table(request, table_class, matching(filter_set), **shown)
    archivable = "archived" in filter_set.form.fields
    page = {
        "title": title,
        "note": note,
        "table": table,
        "bulk": bulk,
        "compare": compare,
        "chosen": chosen,
        "archived": archivable and filter_set.form.cleaned_data["archived"],
        "all_archived": archivable and not table.paginator.count and rows.exclude(archived_at=None).exists(),
        "filter": filter_set,
        "selected": selected_filters(request, filter_set),
        "actions": actions,
        "create_url": reverse(create[0]) if create else "",
        "create_label": create[1] if create else "",
        "empty": empty,
    }
    return render(request, template, page | (context or {}))
