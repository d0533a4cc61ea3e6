"""What a request gets where the site fails: 503 while the database is away, else the page of a fault."""

import sys

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.defaults import server_error

from webapp.common import database
from webapp.prefill.answers import database_away
from webapp.prefill.gateway.bodies import PREFIX

AWAY = "The database does not answer."
REMEDY = "Try again in a moment. Runs continue meanwhile."


def failed(request: HttpRequest) -> HttpResponse:
    """The `handler500` of the site. Nothing in it asks the database: no session, no user."""
    if not database.is_away(sys.exc_info()[1]):
        return server_error(request)
    if request.path.startswith(PREFIX):
        return _unlogged(database_away().response())
    response: HttpResponse
    if request.path.startswith("/api/"):
        body = {"field": "site", "value": "", "reason": AWAY, "remedy": REMEDY}
        response = JsonResponse(body, status=503)
    else:
        response = render(None, "503.html", status=503)  # type: ignore[arg-type]  # a request has a user
    response["Retry-After"] = str(database.RETRY_AFTER_S)
    response["Cache-Control"] = "no-store"
    return _unlogged(response)


def _unlogged(response: HttpResponse) -> HttpResponse:
    """Without Django's line, which has a traceback: the log has one line of the failed request already."""
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response
