"""Who calls the API: by the key in the Authorization header alone. Sessions open nothing here."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import redis
import structlog
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import InterfaceError, OperationalError
from django.db.models import Prefetch
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from webapp.accounts.permissions import may
from webapp.accounts.services import token_hash
from webapp.common import broker
from webapp.common.database import is_away
from webapp.common.throttle import Throttle, of_address
from webapp.prefill.answers import ApiError, database_away
from webapp.prefill.models import ASKERS, ApiKey, Tenancy, TenancyPlace, TenancyStatus
from webapp.prefill.services import note_key_use
from webapp.prefill.services.keys import BEGINNING

log = structlog.get_logger(__name__)
LONGEST_KEY = 200
CALLS_PER_MIN = 1200  # of one tenancy, over all its keys

View = Callable[..., HttpResponse]


def with_key(method: str) -> Callable[[View], Callable[..., HttpResponse]]:
    """For a view that takes (request, tenancy in force, what its address names) and may raise ApiError.

    It answers to `method` alone, and where that is GET to HEAD.

    The key is looked up at every call: one that was revoked opens nothing from then on.
    """

    def decorate(view: View) -> Callable[..., HttpResponse]:
        @csrf_exempt
        @login_not_required
        @wraps(view)
        def guarded(request: HttpRequest, **kwargs: Any) -> HttpResponse:
            try:
                if request.method not in (method, "HEAD" if method == "GET" else method):
                    return not_allowed(method)
                return view(request, caller(request).tenancy, **kwargs)
            except ApiError as error:
                return error.response()
            except (redis.RedisError, OSError):
                return no_quotas().response()
            except (OperationalError, InterfaceError) as error:
                if not is_away(error):
                    raise
                return no_database().response()

        return guarded

    return decorate


def not_allowed(method: str) -> JsonResponse:
    """The refusal of every method but `method`."""
    response = ApiError(405, "method_not_allowed", f"This address accepts only {method}.").response()
    response["Allow"] = method
    return response


def no_quotas() -> ApiError:
    """The refusal while the broker does not answer; it is logged."""
    log.warning("quotas are not known: the broker does not answer")
    return ApiError(
        503, "unavailable", "Quotas cannot be checked at the moment. Try again later.", retry_after_s=5.0
    )


def no_database() -> ApiError:
    """The refusal while the database does not answer; it is logged."""
    log.warning("a call was refused: the database does not answer")
    return database_away()


def caller(request: HttpRequest) -> ApiKey:
    """The key that the request carries, with its tenancy, which is in force, and that one's data centres.

    Raises
    ------
    ApiError
        There is none, it opens nothing, or too many calls were made with it.
    RedisError
        The broker does not answer: calls cannot be counted.
    """
    scheme, _, text = request.headers.get("Authorization", "").partition(" ")
    text = text.strip()
    if scheme.lower() != "bearer" or not text:
        raise ApiError(401, "missing_api_key", "Send the key in the header Authorization: Bearer KEY.")
    well_formed = text.startswith(BEGINNING) and len(text) <= LONGEST_KEY
    try:
        key = _live(sha256=token_hash(text)) if well_formed else _live(pk=None)
    except ApiError as error:
        if error.status == 401:
            _count_wrong_key(of_address(request.META.get("REMOTE_ADDR")))
        raise
    _count(key.tenancy)
    note_key_use(key)
    return key


def recheck(key: ApiKey) -> ApiKey:
    """`key` as it is now, in the middle of a long call. Raises ApiError where it opens nothing any more."""
    return _live(pk=key.pk)


def _count_wrong_key(address: str) -> None:
    """Keys cannot be guessed: a right one opens the API from this address as before. Raises ApiError."""
    wrong = Throttle(name="keys", most=settings.WRONG_KEYS_PER_ADDRESS + 1, seconds=60)
    if wait_s := wrong.count(address):
        raise ApiError(
            429, "rate_limit_exceeded", "Too many wrong keys from your address.", retry_after_s=wait_s
        )


def _live(**which: Any) -> ApiKey:
    places = Prefetch("tenancy__places", TenancyPlace.objects.select_related("dc"))
    keys = ApiKey.objects.live().select_related("tenancy__team", "tenancy__tenant").prefetch_related(places)
    try:
        key = keys.get(**which)
    except ApiKey.DoesNotExist:
        raise ApiError(401, "invalid_api_key", "This key is unknown, revoked or replaced.") from None
    _require_in_force(key.tenancy)
    return key


def _require_in_force(tenancy: Tenancy) -> None:
    if not tenancy.tenant.is_active or not may(tenancy.tenant, tenancy.team, ASKERS):
        raise ApiError(403, "account_closed", "The account of this key may no longer use prefill.")
    state = tenancy.state
    if state == TenancyStatus.SUSPENDED:
        raise ApiError(403, "tenancy_suspended", f"The tenancy is suspended: {tenancy.reason}")
    if state != TenancyStatus.ACTIVE:
        raise ApiError(403, "tenancy_ended", "The term of the tenancy has ended. Ask for a renewal.")


def _count(tenancy: Tenancy) -> None:
    if broker.uses(f"v1:{tenancy.pk}", 60) > CALLS_PER_MIN:
        text = f"More than {CALLS_PER_MIN:,} calls in a minute."
        raise ApiError(429, "rate_limit_exceeded", text, retry_after_s=30.0)
