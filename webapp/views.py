"""Pages that belong to no single app: the overview."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render

from webapp.accounts.middleware import for_everyone
from webapp.accounts.models import READERS
from webapp.accounts.permissions import may_somewhere
from webapp.live import overview as live_overview


@for_everyone
def overview(request: HttpRequest) -> HttpResponse:
    """What there is, what runs, what needs attention; who reads nothing goes on to their account."""
    if not may_somewhere(request.user, READERS):
        return redirect("accounts:me")
    return render(request, "overview.html", live_overview.context(request.user))
