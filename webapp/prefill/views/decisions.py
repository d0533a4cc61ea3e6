"""What admins decide on: the review with the forecast, suspension and its end."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from webapp.accounts.middleware import for_everyone
from webapp.common.queries import whole
from webapp.inventory.models import DataCenter
from webapp.prefill import services
from webapp.prefill.chart import supply_chart
from webapp.prefill.forms import ReasonForm, ReviewForm, first_limits
from webapp.prefill.models import MOST_TOKENS_PER_MIN, MOST_TTFT_MS, Tenancy
from webapp.prefill.offers import oversold
from webapp.prefill.services.decisions import require_decider
from webapp.prefill.supply import forecast
from webapp.prefill.views.tenancies import form_of_tenancies, one


@for_everyone
@never_cache
def tenancy_review(request: HttpRequest, pk: int) -> HttpResponse:
    """The request with its forecast; POST `decision` approve or refuse."""
    tenancy = _to_decide(request, pk)
    form = ReviewForm(request.POST or None, tenancy=tenancy)
    if request.method == "POST" and _decided(request, form, tenancy):
        return redirect("prefill:tenancy-detail", pk)
    tokens, ttft_ms, datacenters = _what_if(request, form, tenancy)
    outlook = forecast(tenancy, datacenters, tokens_per_min=tokens, ttft_ms=ttft_ms)
    context = {
        "title": f"Review {tenancy}",
        "crumbs": [
            ("Tenancies", reverse("prefill:tenancy-list")),
            (str(tenancy), reverse("prefill:tenancy-detail", args=[pk])),
        ],
        "tenancy": tenancy,
        "form": form,
        "forecast": outlook,
        "chart": supply_chart(outlook),
        "where": ", ".join(dc.name for dc in datacenters),
    }
    status = 422 if form.errors else 200
    return render(request, "prefill/tenancy_review.html", context, status=status)


def _decided(request: HttpRequest, form: ReviewForm, tenancy: Tenancy) -> bool:
    """Carry out the decision; False where it cannot be, with the reason at its field."""
    figures = None
    try:
        if request.POST.get("decision") == "refuse":
            form.full_clean()
            reason = str(request.POST.get("reason", ""))
            form.errors.clear()  # of limits that a refusal does not need
            services.refuse_tenancy(request.user, tenancy, reason)
        elif form.is_valid():
            data, limits = form.cleaned_data, form.limits()
            dcs = list(data["datacenters"])
            figures = oversold(tenancy, dcs, limits.tokens_per_min)
            services.approve_tenancy(
                request.user,
                tenancy,
                limits,
                dcs,
                data["reason"],
                oversell=figures is not None and data["oversell"] == figures.key,
            )
        else:
            return False
    except ValidationError as error:
        form.take_errors(error)
        if figures is not None and "oversell" in form.errors:
            form.ask_to_oversell(figures)
        return False
    messages.success(request, "Decision saved. The tenant is notified.")
    return True


def _what_if(request: HttpRequest, form: ReviewForm, tenancy: Tenancy) -> tuple[int, int, list[DataCenter]]:
    """The limits that the forecast is for: as the form says, else as asked."""
    data = request.POST or request.GET
    first: dict[str, Any] = first_limits(tenancy)
    tokens = whole(data.get("tokens_per_min"), MOST_TOKENS_PER_MIN) or first["tokens_per_min"]
    ttft_ms = whole(data.get("ttft_ms"), MOST_TTFT_MS) or first["ttft_ms"]
    requested = {place.dc_id: place.dc for place in tenancy.places.all()}
    ticked = [requested[dc] for text in data.getlist("datacenters") if (dc := whole(text)) in requested]
    return tokens, ttft_ms, ticked or tenancy.datacenters


@for_everyone
def tenancy_suspend(request: HttpRequest, pk: int) -> HttpResponse:
    """Stop selling, with a reason."""
    tenancy = _to_decide(request, pk)
    form = ReasonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            services.suspend_tenancy(request.user, tenancy, form.cleaned_data["reason"])
            messages.success(
                request, "Suspended. Its keys no longer work. Requests accepted before will finish."
            )
            return redirect("prefill:tenancy-detail", pk)
        except ValidationError as error:
            form.take_errors(error)
    back = reverse("prefill:tenancy-detail", args=[pk])
    return form_of_tenancies(request, form, f"Suspend {tenancy}", "Suspend", back)


@for_everyone
@require_POST
def tenancy_resume(request: HttpRequest, pk: int) -> HttpResponse:
    """Sell again; once more after a question where that is more than is there."""
    tenancy = _to_decide(request, pk)
    try:
        services.resume_tenancy(request.user, tenancy, oversell="confirmed" in request.POST)
    except ValidationError as error:
        context = {
            "title": f"Resume {tenancy}?",
            "crumbs": [("Tenancies", reverse("prefill:tenancy-list"))],
            "text": " ".join(error.messages),
            "submit_label": "Resume all the same",
            "cancel_url": reverse("prefill:tenancy-detail", args=[pk]),
        }
        return render(request, "prefill/resume.html", context, status=409)
    return redirect("prefill:tenancy-detail", pk)


def _to_decide(request: HttpRequest, pk: int) -> Tenancy:
    """The tenancy, for an admin of the team who is not its tenant."""
    tenancy = one(request, pk)
    require_decider(request.user, tenancy)
    return tenancy
