"""What a request gets where the site fails: 503 while the database is away, else the page of a fault."""

import sys

from django.http import HttpRequest, HttpResponse
from django.views.defaults import server_error

from webapp.common import database
from webapp.edge.refusals import Refusal

AWAY = Refusal(
    status=503,
    code="unavailable",
    title="The database is away",
    text="The site cannot read or write anything at the moment. Nothing was saved by this request. "
    "Runs continue. Try again in a moment.",
    retry_after_s=database.RETRY_AFTER_S,
)


def failed(request: HttpRequest) -> HttpResponse:
    """The `handler500` of the site. Nothing in it asks the database: no session, no user."""
    if not database.is_away(sys.exc_info()[1]):
        return server_error(request)
    response = AWAY.response(request.path)
    # Without Django's line, which has a traceback: the log has one line of the failed request already.
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response
