"""A tenant's own page: what it has, what it used, and a request to copy."""

import json
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache

from webapp.accounts.middleware import for_everyone
from webapp.accounts.permissions import may_somewhere
from webapp.prefill import demo, selectors
from webapp.prefill.models import ASKERS, ApiKey, Tenancy
from webapp.prefill.prices import offered_models
from webapp.prefill.served import served_first
from webapp.prefill.tables import tenancy_state

MOST_SHOWN = 20


@for_everyone
@never_cache
def home(request: HttpRequest) -> HttpResponse:
    me: Any = request.user
    mine: Any = selectors.tenancies(request.user).filter(tenant=me)
    latest = list(mine.order_by("-created_at")[:MOST_SHOWN])
    month = selectors.used_this_month(latest)
    usable = served_first(mine.in_force().order_by("-created_at")[:MOST_SHOWN])
    models = offered_models(me, usable)
    in_force = usable[0] if usable else None
    context = {
        "title": "Prefill",
        "crumbs": [],
        "tenancies": [(one, tenancy_state(one), month.get(one.pk)) for one in latest],
        "tenancy_count": mine.count(),
        "total": selectors.used(selectors.usage(request.user).filter(tenancy__tenant=me), days=30),
        "live_keys": ApiKey.objects.visible_to(request.user).live().filter(tenancy__tenant=me).count(),
        "left": selectors.quota_left(in_force) if in_force else None,
        "in_force": in_force,
        "models": models,
        "served_in": models[0].where if in_force else [],
        "examples": _examples(request, in_force),
        "key_command": demo.key_command(settings.VAR, in_force) if settings.DEMO and in_force else "",
        "news": selectors.news(request.user),
        "may_ask": may_somewhere(request.user, ASKERS),
    }
    return render(request, "prefill/home.html", context)


def _examples(request: HttpRequest, tenancy: Tenancy | None) -> list[tuple[str, str, str]]:
    """(id, title, text) of what can be copied: a shell command, and OpenAI's own client."""
    model = tenancy.model if tenancy else "MODEL"
    base = request.build_absolute_uri(reverse("v1:models")).removesuffix("/models")
    body = json.dumps({"model": model, "prompt": "The idle time of a pipeline", "max_tokens": 16})
    curl = (
        f"curl {base}/completions \\\n"
        '  -H "Authorization: Bearer $MERIDIAN_KEY" \\\n'
        '  -H "Content-Type: application/json" \\\n'
        f"  -d '{body}'"
    )
    python = (
        "import os\nfrom openai import OpenAI\n\n"
        f'client = OpenAI(base_url={json.dumps(base)}, api_key=os.environ["MERIDIAN_KEY"])\n'
        "stream = client.chat.completions.create(\n"
        f'    model={json.dumps(model)}, messages=[{{"role": "user", "content": "Hello"}}], stream=True\n'
        ")\n"
        "for chunk in stream:\n"
        '    print(chunk.choices[0].delta.content or "", end="")'
    )
    return [("example-curl", "curl", curl), ("example-python", "Python, pip install openai", python)]
