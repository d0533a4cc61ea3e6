"""Usage: every request, exports, monthly statements."""

from datetime import timedelta

from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone

from webapp.accounts.export import FORMATS, exported
from webapp.accounts.middleware import for_everyone
from webapp.common.figures import download
from webapp.common.lists import bound_table, list_page
from webapp.prefill import export, selectors
from webapp.prefill.filters import UsageFilterSet
from webapp.prefill.tables import StatementTable, UsageTable


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
    return exported(
        request,
        kind,
        name="usage",
        rows=selectors.usage(request.user),
        filter_class=UsageFilterSet,
        table_class=UsageTable,
        fields=export.FIELDS,
        values=export.values,
    )


@for_everyone
def usage_statement(request: HttpRequest) -> HttpResponse:
    """What was used and charged in the month `month` (2026-11; by default this one)."""
    begin, end = selectors.month_of(request.GET.get("month"))
    month = f"{begin:%Y-%m}"
    rows = selectors.statement(request.user, begin, end)
    if request.GET.get("format") == "csv":
        text = export.statement_csv(rows, month)
        return download(text, "text/csv; charset=utf-8", f"meridian-statement-{month}.csv")
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
