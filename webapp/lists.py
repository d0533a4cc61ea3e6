"""The list page: rows that the user may see, filtered, sorted and paged by the server."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django_tables2 import RequestConfig


def bound_table(request: HttpRequest, table_class: Any, rows: Any, *, prefix: str = "", **kwargs: Any) -> Any:
    """`rows` as a table that is sorted and paged as the request asks."""
    table = table_class(rows, prefix=prefix, **kwargs)
    RequestConfig(request, paginate={"per_page": 50, "silent": True}).configure(table)
    return table


def list_page(
    request: HttpRequest, *, title: str, rows: Any, filter_class: Any, table_class: Any, empty: str,
    create: tuple[str, str] | None = None,
) -> HttpResponse:  # fmt: skip
    """Render components/list.html; `create` is (URL name, label) of the button for a new row."""
    found = filter_class(request.GET, queryset=rows, request=request)
    context = {
        "title": title,
        "table": bound_table(request, table_class, found.qs),
        "filter": found,
        "create_url": reverse(create[0]) if create else "",
        "create_label": create[1] if create else "",
        "empty": empty,
    }
    return render(request, "components/list.html", context)
