"""Tenancies as both sides see them: list, page of one, request, withdrawal, renewal."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from webapp.accounts.middleware import for_everyone
from webapp.accounts.models import ADMINS
from webapp.accounts.permissions import may, may_somewhere, require_somewhere, visible_or_404
from webapp.common.formkit import form_page
from webapp.common.lists import bound_table, list_page
from webapp.prefill import selectors, services
from webapp.prefill.filters import TenancyFilterSet
from webapp.prefill.forms import RenewalForm, TenancyForm
from webapp.prefill.models import ASKERS, Tenancy, TenancyStatus
from webapp.prefill.served import open_places
from webapp.prefill.services.decisions import may_decide
from webapp.prefill.tables import KeyTable, TenancyTable, tenancy_state


@for_everyone
def tenancy_list(request: HttpRequest) -> HttpResponse:
    asks = may_somewhere(request.user, ASKERS)
    return list_page(
        request,
        title="Tenancies",
        rows=selectors.tenancies(request.user),
        filter_class=TenancyFilterSet,
        table_class=TenancyTable,
        actions=[(reverse("prefill:tenancy-request"), "Request tenancy")] if asks else (),
        empty="No tenancies yet. Request one to use prefill in the bubbles of training.",
        context={"crumbs": []},
    )


@for_everyone
def tenancy_request(request: HttpRequest) -> HttpResponse:
    """Ask for a tenancy."""
    require_somewhere(request.user, ASKERS)
    first = {"model": request.GET["model"]} if "model" in request.GET else {}
    form = TenancyForm(request.POST or None, initial=first, user=request.user)
    if request.method == "POST" and form.is_valid():
        try:
            tenancy = services.request_tenancy(
                request.user, form.instance, list(form.cleaned_data["datacenters"])
            )
            messages.success(
                request, "The request was sent to the admins. You will be notified of their decision."
            )
            return redirect("prefill:tenancy-detail", tenancy.pk)
        except ValidationError as error:
            form.take_errors(error)
    return form_of_tenancies(request, form, "Request tenancy", "Request tenancy")


@for_everyone
@never_cache
def tenancy_detail(request: HttpRequest, pk: int) -> HttpResponse:
    tenancy = one(request, pk)
    mine = tenancy.tenant_id == request.user.pk
    sees_keys = mine or may(request.user, tenancy.team, ADMINS)
    key_rows = selectors.keys(request.user).filter(tenancy=tenancy)
    context = {
        "tenancy": tenancy,
        "title": tenancy.name,
        "crumbs": [("Tenancies", reverse("prefill:tenancy-list"))],
        "state": tenancy_state(tenancy),
        "mine": mine,
        "may_decide": may_decide(request.user, tenancy),
        "active": tenancy.state == TenancyStatus.ACTIVE,
        "suspended": tenancy.state == TenancyStatus.SUSPENDED,
        "may_renew": mine
        and tenancy.status in (TenancyStatus.ACTIVE, TenancyStatus.ENDED)
        and not tenancy.waits,
        "sees_keys": sees_keys,
        "keys": bound_table(request, KeyTable, key_rows, prefix="keys-", exclude=("tenancy",))
        if sees_keys
        else None,
        "served_in": open_places([tenancy])[tenancy.pk],
        "month": selectors.used_this_month([tenancy]).get(tenancy.pk),
        "left": selectors.quota_left(tenancy) if tenancy.tokens_per_min else None,
        "news": selectors.news(request.user, tenancy),
    }
    return render(request, "prefill/tenancy_detail.html", context)


@for_everyone
@require_POST
def tenancy_withdraw(request: HttpRequest, pk: int) -> HttpResponse:
    """Take back what nobody has decided."""
    services.withdraw_tenancy(request.user, one(request, pk))
    return redirect("prefill:tenancy-detail", pk)


@for_everyone
def tenancy_renew(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask for more days."""
    tenancy = one(request, pk)
    form = RenewalForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            services.ask_renewal(request.user, tenancy, form.cleaned_data["days"])
            messages.success(
                request, "The renewal was sent to the admins. You will be notified of their decision."
            )
            return redirect("prefill:tenancy-detail", pk)
        except ValidationError as error:
            form.take_errors(error)
    back = reverse("prefill:tenancy-detail", args=[pk])
    return form_of_tenancies(request, form, f"Renew {tenancy}", "Request renewal", back)


def one(request: HttpRequest, pk: int) -> Tenancy:
    """The tenancy that the reader may see, else 404."""
    rows = Tenancy.objects.select_related("team", "tenant", "decided_by").prefetch_related("places__dc")
    return visible_or_404(rows, request.user, pk=pk)


def form_of_tenancies(
    request: HttpRequest, form: Any, title: str, submit: str, back: str | None = None
) -> HttpResponse:
    """A form below the list of tenancies; Cancel leads to that list, or `back`."""
    above = reverse("prefill:tenancy-list")
    return form_page(request, form, title, back=back or above, crumbs=[("Tenancies", above)], submit=submit)
