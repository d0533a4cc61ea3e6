"""What a page shows once and the site does not keep: keys, commands with a token, one-time links.

The POST that makes it answers with a redirect, so that a reload does not make another. What is to be shown
goes with that answer in a signed cookie of the next address alone, and is gone once it was shown.
"""

import hashlib
from typing import Any

from django.core import signing
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render

LONGEST_S = 60


def show_once(request: HttpRequest, address: str, values: dict[str, Any]) -> HttpResponse:
    """Go to `address`, whose next page can read `values` (JSON) with `to_be_shown`."""
    answer = HttpResponseRedirect(address)
    answer["Cache-Control"] = "no-store"
    signed = signing.dumps([request.user.pk, values], salt=address)
    answer.set_cookie(
        _name(address),
        signed,
        max_age=LONGEST_S,
        path=address,
        httponly=True,
        samesite="Strict",
        secure=request.is_secure(),
    )
    return answer


def to_be_shown(request: HttpRequest) -> dict[str, Any] | None:
    """What is to be shown at this address; None where nothing is, or no longer."""
    signed = request.COOKIES.get(_name(request.path), "")
    try:
        user, values = signing.loads(signed, salt=request.path, max_age=LONGEST_S)
    except signing.BadSignature:
        return None
    return values if user == request.user.pk else None


def page_shown_once(request: HttpRequest, template: str, context: dict[str, Any]) -> HttpResponse:
    """The page with what `to_be_shown` gave; the next request has it no more."""
    answer = render(request, template, context)
    answer["Cache-Control"] = "no-store"
    answer.delete_cookie(_name(request.path), path=request.path, samesite="Strict")
    return answer


def _name(address: str) -> str:
    """Of the cookie: one for each address, so that those of an address above it are not taken for it."""
    return f"once-{hashlib.sha256(address.encode()).hexdigest()[:12]}"
