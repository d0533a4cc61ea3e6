"""Invitations: made and revoked by admins, accepted by whoever holds the link."""

from typing import Any

from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters

from webapp.accounts import limits, mail, selectors, services
from webapp.accounts.filters import InvitationFilterSet
from webapp.accounts.forms import InvitationForm, JoinForm
from webapp.accounts.models import ADMINS, Invitation, InvitationState, Role
from webapp.accounts.permissions import require_somewhere, visible_or_404
from webapp.accounts.tables import InvitationTable
from webapp.accounts.views.login import began
from webapp.accounts.views.refused import address_of, refused
from webapp.common.formkit import form_page
from webapp.common.lists import list_page
from webapp.common.shown_once import page_shown_once, show_once, to_be_shown
from webapp.common.throttle import of_address

BACKEND = "django.contrib.auth.backends.ModelBackend"


def invitation_list(request: HttpRequest) -> HttpResponse:
    require_somewhere(request.user, ADMINS)
    return list_page(
        request,
        title="Invitations",
        rows=selectors.invitations(request.user),
        filter_class=InvitationFilterSet,
        table_class=InvitationTable,
        create=("accounts:invitation-create", "Invite"),
        empty="No invitations yet. Invite a person to a team.",
        context={"crumbs": _crumbs()[:1]},
    )


def invitation_create(request: HttpRequest) -> HttpResponse:
    """Invite somebody; the link is shown once."""
    require_somewhere(request.user, ADMINS)
    if (link := to_be_shown(request)) is not None:
        crumbs = {"crumbs": _crumbs(), "back_url": reverse("accounts:invitation-list")}
        return page_shown_once(request, "accounts/link.html", link | crumbs)
    form = InvitationForm(request.POST or None, user=request.user)
    if request.method == "POST" and form.is_valid():
        values = form.cleaned_data
        try:
            invitation = services.invite(
                request.user, values["team"], email=values["email"], role=Role(values["role"])
            )
            return _made(request, *invitation)
        except ValidationError as error:
            form.take_errors(error)
    back = reverse("accounts:person-list")
    return form_page(request, form, "Invite", back=back, crumbs=_crumbs(), submit="Create invitation")


def _made(request: HttpRequest, invitation: Invitation, token: str) -> HttpResponse:
    url = request.build_absolute_uri(reverse("accounts:invitation-accept", args=[token]))
    sent = mail.send_invitation(invitation, url)
    how = (
        f"It was sent to {invitation.email}."
        if sent
        else f"Send it to {invitation.email} yourself: no mail was sent."
    )
    page = {
        "title": f"Invitation for {invitation.email}",
        "url": url,
        "text": f"Anyone who opens this link within seven days joins {invitation.team} as "
        f"{invitation.get_role_display().lower()}. It works once. {how}",
    }
    return show_once(request, request.path, page)


def invitation_revoke(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask, then make the link worthless."""
    invitation = visible_or_404(Invitation.objects.select_related("team"), request.user, pk=pk)
    is_open = invitation.state == InvitationState.OPEN
    if request.method == "POST" and is_open:
        services.revoke_invitation(request.user, invitation)
        messages.success(request, f"The link for {invitation.email} no longer works.")
        return redirect("accounts:invitation-list")
    context = {
        "title": f"Revoke the invitation for {invitation.email}?",
        "text": f"The link into {invitation.team} will no longer work.",
        "blocked": "" if is_open else f"The invitation is {invitation.state.label.lower()} already.",
        "submit_label": "Revoke the invitation",
        "cancel_url": reverse("accounts:invitation-list"),
        "crumbs": _crumbs(),
    }
    return render(
        request, "components/confirm.html", context, status=409 if request.method == "POST" else 200
    )


@login_not_required
@never_cache
@sensitive_post_parameters()
def invitation_accept(request: HttpRequest, token: str) -> HttpResponse:
    """Join with the account that is logged in, else with a new one."""
    address = of_address(address_of(request))
    if wait_s := limits.wrong_links().wait(address):
        return refused(request, wait_s)
    invitation = services.open_invitation(token)
    if invitation is None:
        limits.wrong_links().count(address)
        return render(request, "accounts/invitation_over.html", {"title": "Invitation"}, status=404)
    first = {"username": invitation.email.partition("@")[0]}
    form = None if request.user.is_authenticated else JoinForm(request.POST or None, initial=first)
    if request.method == "POST" and (form is None or form.is_valid()):
        try:
            return _join(request, invitation, token, form)
        except ValidationError as error:
            if form is None:
                return render(request, "accounts/invitation_over.html", {"title": "Invitation"}, status=409)
            form.take_errors(error)
    context = {
        "title": f"Join {invitation.team}",
        "invitation": invitation,
        "form": form,
        "here": request.path,
    }
    return render(
        request, "accounts/invitation_accept.html", context, status=422 if form and form.errors else 200
    )


def _join(request: HttpRequest, invitation: Invitation, token: str, form: Any) -> HttpResponse:
    if form is None:
        services.accept_invitation(token, request.user)  # type: ignore[arg-type]  # a User: logged in
    else:
        names = {name: form.cleaned_data[name] for name in ("first_name", "last_name")}
        user = services.join_with_new_account(
            token, username=form.cleaned_data["username"], password=form.cleaned_data["password1"], **names
        )
        login(request, user, backend=BACKEND)
        began(request, user)
    messages.success(request, f"Welcome to {invitation.team}.")
    return redirect("overview")


def _crumbs() -> list[tuple[str, str]]:
    return [("People", reverse("accounts:person-list")), ("Invitations", reverse("accounts:invitation-list"))]
