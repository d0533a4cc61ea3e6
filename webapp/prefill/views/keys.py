"""Keys: made, replaced and revoked by their tenant; admins may revoke."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from webapp.accounts.middleware import for_everyone
from webapp.accounts.permissions import visible_or_404
from webapp.common.lists import list_page
from webapp.common.shown_once import page_shown_once, show_once, to_be_shown
from webapp.prefill import selectors, services
from webapp.prefill.filters import KeyFilterSet
from webapp.prefill.forms import KeyForm, RotateForm
from webapp.prefill.models import ApiKey, Tenancy
from webapp.prefill.served import open_places
from webapp.prefill.tables import KeyTable
from webapp.prefill.views.tenancies import form_of_tenancies


@for_everyone
def key_list(request: HttpRequest) -> HttpResponse:
    me: Any = request.user
    has_some = Tenancy.objects.visible_to(me).in_force().filter(tenant=me).exists()
    return list_page(
        request,
        title="Keys",
        rows=selectors.keys(request.user),
        filter_class=KeyFilterSet,
        table_class=KeyTable,
        actions=[(reverse("prefill:key-create"), "Make key")] if has_some else (),
        empty="No keys yet. Tenants make keys for their active tenancies.",
        context={"crumbs": []},
    )


@for_everyone
@never_cache
def key_create(request: HttpRequest) -> HttpResponse:
    """Make a key, and show it once."""
    if (secret := to_be_shown(request)) is not None:
        return _show(request, secret)
    form = KeyForm(request.POST or None, initial=request.GET.dict(), user=request.user)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            key, text = services.make_key(request.user, data["tenancy"], data["name"])
            return _made(request, key, text)
        except ValidationError as error:
            form.take_errors(error)
    return form_of_tenancies(request, form, "Make key", "Make key", reverse("prefill:key-list"))


@for_everyone
@never_cache
def key_rotate(request: HttpRequest, pk: int) -> HttpResponse:
    """Replace a key, and show the new one once."""
    if (secret := to_be_shown(request)) is not None:
        return _show(request, secret)
    key = _one(request, pk)
    form = RotateForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            new, text = services.rotate_key(request.user, key, form.cleaned_data["overlap_h"])
            return _made(request, new, text)
        except ValidationError as error:
            form.take_errors(error)
    return form_of_tenancies(request, form, f"Replace {key}", "Replace key", reverse("prefill:key-list"))


@for_everyone
@require_POST
def key_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    """End a key from the next request on."""
    key = services.revoke_key(request.user, _one(request, pk))
    messages.success(request, f"The key {key} no longer works.")
    return redirect("prefill:key-list")


def _one(request: HttpRequest, pk: int) -> ApiKey:
    return visible_or_404(ApiKey.objects.select_related("tenancy__team"), request.user, pk=pk)


def _made(request: HttpRequest, key: ApiKey, text: str) -> HttpResponse:
    where = ", ".join(open_places([key.tenancy])[key.tenancy_id])
    about = {"of": f"{key.name}, of {key.tenancy}", "model": key.tenancy.model, "where": where}
    return show_once(request, request.path, {**about, "text": text})


def _show(request: HttpRequest, secret: dict[str, str]) -> HttpResponse:
    context = {
        "title": "Your new key",
        **secret,
        "crumbs": [("Keys", reverse("prefill:key-list"))],
        "back_url": reverse("prefill:key-list"),
    }
    return page_shown_once(request, "prefill/key_shown.html", context)
