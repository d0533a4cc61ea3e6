"""Usage: every request, exports, monthly statements."""

from datetime import timedelta

from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from webapp.accounts.export import csv_line, lines
from webapp.accounts.middleware import for_everyone
from webapp.common.lists import bound_table, list_page, matching
from webapp.prefill import export, selectors
from webapp.prefill.filters import UsageFilterSet
from webapp.prefill.tables import StatementTable, UsageTable

FORMATS = {
    "csv": ("text/csv; charset=utf-8", export.as_csv_line, csv_line(list(export.FIELDS))),
    "jsonl": ("application/jsonl; charset=utf-8", export.as_json_line, ""),
}


@for_everyone
def usage_list(request: HttpRequest) -> HttpResponse:
    query = f"?{request.GET.urlencode()}" if request.GET else ""
    count = selectors.in_progress(request.user)
    running = "1 request in progress" if count == 1 else f"{count:,} requests in progress"
    return list_page(
        request,
        title="Usage",
        note=f"{running}, listed and charged when known" if count else "",
        rows=selectors.usage(request.user),
        filter_class=UsageFilterSet,
        table_class=UsageTable,
        actions=[
            (reverse("prefill:usage-statement"), "Monthly statement"),
            *((reverse("prefill:usage-export", args=[kind]) + query, kind.upper()) for kind in FORMATS),
        ],
        empty="No requests yet.",
        context={"crumbs": []},
    )


@for_everyone
def usage_export(request: HttpRequest, kind: str) -> StreamingHttpResponse:
    """Exactly the events that the filter shows, in its order, all pages of them."""
    if kind not in FORMATS:
        raise Http404
    content_type, write, head = FORMATS[kind]
    filter_set = UsageFilterSet(request.GET, queryset=selectors.usage(request.user), request=request)
    rows = bound_table(request, UsageTable, matching(filter_set)).data.data
    response = StreamingHttpResponse(lines(rows, write, head), content_type=content_type)
    name = f"meridian-usage-{timezone.now():%Y%m%d-%H%M%S}.{kind}"
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response


@for_everyone
def usage_statement(request: HttpRequest) -> HttpResponse:
    """What was used and charged in the month `month` (2026-11; by default this one)."""
    begin, end = selectors.month_of(request.GET.get("month"))
    month = f"{begin:%Y-%m}"
    rows = selectors.statement(request.user, begin, end)
    if request.GET.get("format") == "csv":
        response = HttpResponse(export.statement_csv(rows, month), content_type="text/csv; charset=utf-8")
        response["Content-Disposition"] = f'attachment; filename="meridian-statement-{month}.csv"'
        return response
    context = {
        "title": f"Statement {begin:%B %Y}",
        "crumbs": [("Usage", reverse("prefill:usage-list"))],
        "month": month,
        "before": f"{begin - timedelta(days=1):%Y-%m}",
        "after": f"{end:%Y-%m}" if end <= timezone.now() else "",
        "table": bound_table(request, StatementTable, rows),
        "running": end > timezone.now(),
    }
    return render(request, "prefill/statement.html", context)
