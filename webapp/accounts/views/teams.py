"""Teams that one administers."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect
from django.urls import reverse

from webapp.accounts import selectors, services
from webapp.accounts.filters import TeamFilterSet
from webapp.accounts.forms import TeamForm
from webapp.accounts.models import ADMINS, Team
from webapp.accounts.permissions import require_somewhere
from webapp.accounts.tables import TeamTable
from webapp.common.formkit import form_page
from webapp.common.lists import list_page


def team_list(request: HttpRequest) -> HttpResponse:
    require_somewhere(request.user, ADMINS)
    return list_page(
        request,
        title="Teams",
        rows=selectors.teams(request.user),
        filter_class=TeamFilterSet,
        table_class=TeamTable,
        create=("accounts:team-create", "Add team"),
        empty="You are not an admin of any team.",
        context={"crumbs": [("People", reverse("accounts:person-list"))]},
    )


def team_create(request: HttpRequest) -> HttpResponse:
    """A new team, whose first admin is who made it."""
    require_somewhere(request.user, ADMINS)
    form = TeamForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        try:
            team = services.create_team(request.user, form.cleaned_data["name"])
            messages.success(request, f"You are admin of {team}. Invite others to it.")
            return redirect("accounts:team-list")
        except ValidationError as error:
            form.take_errors(error)
    return _form(request, form, "Add team", "Add team")


@transaction.atomic
def team_edit(request: HttpRequest, pk: int) -> HttpResponse:
    """Rename a team."""
    team = get_object_or_404(Team.objects.administered_by(request.user), pk=pk)
    form = TeamForm(request.POST or None, instance=team)
    if request.method == "POST" and form.is_valid():
        try:
            services.rename_team(request.user, team, form.cleaned_data["name"])
            return redirect("accounts:team-list")
        except ValidationError as error:
            form.take_errors(error)
    return _form(request, form, f"Rename {Team.objects.get(pk=pk)}", "Rename")


def _form(request: HttpRequest, form: Any, title: str, submit: str) -> HttpResponse:
    back = reverse("accounts:team-list")
    crumbs = [("People", reverse("accounts:person-list")), ("Teams", back)]
    return form_page(request, form, title, back=back, crumbs=crumbs, submit=submit)
