"""Pages that belong to no single app: the overview and the search."""

from datetime import UTC, datetime, timedelta

from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_safe

from webapp.accounts.middleware import for_everyone
from webapp.accounts.models import READERS, Role
from webapp.accounts.permissions import may_somewhere
from webapp.common import search as finding
from webapp.overview import context

SECURITY_TXT_LASTS = timedelta(days=30)


@for_everyone
def overview(request: HttpRequest) -> HttpResponse:
    """What there is, what runs, what needs attention. Who reads nothing goes on to their own page."""
    if not may_somewhere(request.user, READERS):
        tenant = may_somewhere(request.user, (Role.TENANT,))
        return redirect("prefill:home" if tenant else "accounts:me")
    return render(request, "overview.html", context(request.user))


@for_everyone
@require_GET
def search(request: HttpRequest) -> HttpResponse:
    """What of all apps fits `q`: a page, or with `part` the list under the field that asks."""
    text = finding.SearchText.of(request.GET.get("q", ""))
    part = "part" in request.GET
    groups = finding.search(request.user, text, finding.SHOWN if part else finding.SHOWN_ON_PAGE)
    template = "components/found.html" if part else "search.html"
    return render(request, template, {"asked": text, "groups": groups, "part": part})


@login_not_required
@require_safe
def security_txt(request: HttpRequest) -> HttpResponse:
    """Whom to tell of a hole in this site, as RFC 9116 says; 404 where nobody is named."""
    if not settings.SECURITY_CONTACT:
        raise Http404
    until = datetime.now(UTC) + SECURITY_TXT_LASTS
    lines = [f"Contact: {contact}" for contact in settings.SECURITY_CONTACT]
    lines.append(f"Expires: {until:%Y-%m-%dT%H:%M:%SZ}")
    return HttpResponse("\n".join([*lines, ""]), content_type="text/plain; charset=utf-8")
