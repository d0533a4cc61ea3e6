"""Pages that belong to no single app: the overview."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from webapp.accounts.middleware import for_everyone
from webapp.accounts.models import READERS, Role
from webapp.accounts.permissions import may_somewhere
from webapp.overview import context


@for_everyone
def overview(request: HttpRequest) -> HttpResponse:
    """What there is, what runs, what needs attention. Who reads nothing goes on to their own page."""
    if not may_somewhere(request.user, READERS):
        tenant = may_somewhere(request.user, (Role.TENANT,))
        return redirect("prefill:home" if tenant else "accounts:me")
    return render(request, "overview.html", context(request.user))
