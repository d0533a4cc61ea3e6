"""The API under /v1/. A prompt that comes in is counted and forgotten: it is neither stored nor logged."""

from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.views.decorators.csrf import csrf_exempt

from engine.inputs import whole
from engine.prefill.messages import context_exceeded
from engine.prefill.placement import Refusal
from webapp.inventory.models import DataCenter
from webapp.prefill import quota
from webapp.prefill.answers import ApiError, answer, body_of, json_object, no_such_model, unknown_field
from webapp.prefill.bearer import with_key
from webapp.prefill.catalogue import context_tokens
from webapp.prefill.models import Tenancy, charge_of
from webapp.prefill.quote import NOTHING_RUNS_MS, Quote, foretells, quote, soonest
from webapp.prefill.reasons import WHY
from webapp.prefill.served import all_paused, coordinators_for, coordinators_in, places_of

FIELDS = ("model", "prompt", "prompt_tokens")
MOST_TOKENS = 10**9


@with_key("GET")
def models(request: HttpRequest, tenancy: Tenancy) -> HttpResponse:
    """The model of the key's tenancy, anywhere and as model@dc; `open`: whether a run takes prompts there."""
    return answer({"object": "list", "data": _models(tenancy)})


@with_key("GET")
def model(request: HttpRequest, tenancy: Tenancy, name: str) -> HttpResponse:
    """One of `models`."""
    for served in _models(tenancy):
        if served["id"] == name:
            return answer(served)
    return unlogged(no_such_model(name).response())


def _models(tenancy: Tenancy) -> list[dict[str, Any]]:
    open_in = set(
        coordinators_in([tenancy.team_id]).filter(model=tenancy.model).values_list("dc__name", flat=True)
    )
    about = {
        "object": "model",
        "created": int(tenancy.starts_at.timestamp()) if tenancy.starts_at else 0,
        "owned_by": tenancy.team.name,
        "max_prompt_tokens": tenancy.longest_prompt,
        "price_microusd_per_million_tokens": tenancy.price,
    }
    names = {dc.name: f"{tenancy.model}@{dc.name}" for dc in tenancy.datacenters}
    everywhere = {"id": tenancy.model, **about, "open": bool(open_in & names.keys())}
    return [everywhere, *({"id": name, **about, "open": dc in open_in} for dc, name in names.items())]


@with_key("POST")
def prefill_quote(request: HttpRequest, tenancy: Tenancy) -> HttpResponse:
    """Whether a prompt would be admitted now, how soon its KV cache would be there, and its price."""
    document = json_object(body_of(request))
    if unknown_names := [name for name in document if name not in FIELDS]:
        raise unknown_field(unknown_names[0], FIELDS)
    places = places_of(tenancy, document.get("model"))
    tokens, count_basis = _tokens(document)
    _require_short(tenancy, tokens, count_basis)
    limit = tenancy.tokens_per_min or 0
    allowance = quota.look(tenancy.pk, tokens, limit)
    if not allowance.ok:
        text = f"{allowance.remaining:,} of {limit:,} tokens per minute are left."
        raise ApiError(429, "rate_limit_exceeded", text, retry_after_s=allowance.wait_s, drawn=allowance)
    best, dc, basis = _soonest(tenancy, places, tokens)
    if isinstance(best, Refusal):
        wait_s = None if best.retry_after_ms is None else best.retry_after_ms / 1e3
        raise ApiError(503, best.reason, WHY[best.reason], retry_after_s=wait_s, drawn=allowance)
    price = tenancy.price or 0
    body = {
        "object": "prefill.quote",
        "admitted": True,
        "model": document["model"],
        "datacenter": dc.name,
        "prompt_tokens": tokens,
        "prompt_tokens_counted": count_basis,
        "basis": basis,
        "queue_ms": None if best.queue_ms is None else round(best.queue_ms, 3),
        "ttft_ms": None if best.ttft_ms is None else round(best.ttft_ms, 3),
        "ttft_objective_ms": tenancy.ttft_ms,
        "price_microusd_per_million_tokens": price,
        "charge_microusd": charge_of(tokens, price),
    }
    return answer(body, drawn=allowance)


def _soonest(
    tenancy: Tenancy, places: list[DataCenter], tokens: int
) -> tuple[Quote | Refusal, DataCenter, str]:
    """Of what is foretold for `places`, that of the first to be done, else of the first to be asked again."""
    quotes = {dc: _found(tenancy, dc, tokens) for dc in places}
    best = soonest([outlook for outlook, _ in quotes.values()])
    dc, basis = next((dc, basis) for dc, (outlook, basis) in quotes.items() if outlook is best)
    return best, dc, basis


def _found(tenancy: Tenancy, dc: DataCenter, tokens: int) -> tuple[Quote | Refusal, str]:
    """What is foretold, and from what: the schedules of runs that serve the model, where they are predicted
    and the times of the model are known, else the coordinator.

    Without an open coordinator that is not paused nothing is admitted, whatever the schedules say.
    """
    coordinators = coordinators_for(tenancy, dc)
    if not coordinators:
        return Refusal(reason="no_bubble", retry_after_ms=NOTHING_RUNS_MS), "coordinator"
    if all_paused(coordinators):
        return Refusal(reason="training_paused", retry_after_ms=1e3), "coordinator"
    if foretells(tenancy.model, dc):
        return quote(tenancy.model, dc, tokens, float(tenancy.ttft_ms or 0)), "schedule"
    return Quote(queue_ms=None, ttft_ms=None), "coordinator"


@csrf_exempt
@login_not_required
def unknown(request: HttpRequest, rest: str = "") -> HttpResponse:
    """Every other address."""
    return unlogged(ApiError(404, "unknown_url", "There is no such address under /v1/.").response())


def unlogged(response: HttpResponse) -> HttpResponse:
    """Without Django's line in the log, which quotes the address: a client may have put a prompt there."""
    response._has_been_logged = True  # type: ignore[attr-defined]
    return response


def _tokens(document: dict[str, Any]) -> tuple[int, str]:
    """How many tokens the prompt has, and how they were counted.

    A prompt as text has at most as many tokens as bytes of UTF-8; one as token ids has as many as it lists.
    """
    if ("prompt" in document) == ("prompt_tokens" in document):
        raise ApiError(400, "invalid_value", "Send either prompt or prompt_tokens.", param="prompt_tokens")
    if "prompt_tokens" in document:
        tokens, count_basis = whole(document["prompt_tokens"]), "given"
        if isinstance(tokens, bool) or not isinstance(tokens, int) or not 1 <= tokens <= MOST_TOKENS:
            text = f"prompt_tokens must be a whole number from 1 to {MOST_TOKENS:,}."
            raise ApiError(400, "invalid_value", text, param="prompt_tokens")
        return tokens, count_basis
    prompt = document["prompt"]
    if isinstance(prompt, str) and prompt:
        return len(prompt.encode(errors="surrogatepass")), "bytes"
    if isinstance(prompt, list) and prompt and all(_is_id(token) for token in prompt):
        return len(prompt), "ids"
    text = "prompt must be text, or a list of token ids, and not empty."
    raise ApiError(400, "invalid_value", text, param="prompt")


def _is_id(token: Any) -> bool:
    return type(whole(token)) is int and token >= 0


def _require_short(tenancy: Tenancy, tokens: int, count_basis: str) -> None:
    context, longest = context_tokens(tenancy.model), tenancy.longest_prompt or 0
    if count_basis == "bytes" and tokens > longest:
        text = f"{tokens:,} bytes may be more than {longest:,} tokens. Send prompt_tokens or token ids."
        raise ApiError(400, "tokens_unknown", text, param="prompt")
    if tokens > context:
        text = context_exceeded(context, tokens, 0)
        raise ApiError(400, "context_length_exceeded", text, param="prompt")
    if tokens > longest:
        text = f"{tokens:,} tokens, but the tenancy allows at most {longest:,}."
        raise ApiError(413, "prompt_too_long", text, param="prompt")
