"""Who asks, and the page of those who have failed too often."""

import math

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render


def address_of(request: HttpRequest) -> str | None:
    """The client's address: the connection's, or what a named proxy says (MERIDIAN_PROXY_IPS)."""
    return request.META.get("REMOTE_ADDR") or None


def refused(request: HttpRequest, wait_s: float) -> HttpResponse:
    """429: nothing is looked at for so many seconds."""
    minutes = max(1, math.ceil(wait_s / 60))
    context = {
        "heading": "Too many tries",
        "text": f"Too many tries came from your address. Try again in {minutes} min.",
    }
    response = render(request, "refused.html", context, status=429)
    response["Retry-After"] = str(60 * minutes)
    return response
