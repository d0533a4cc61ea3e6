"""People: the members of the teams that one administers, their roles and their accounts."""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST

from webapp.accounts import selectors, services
from webapp.accounts.filters import MemberFilterSet
from webapp.accounts.forms import RoleForm
from webapp.accounts.models import ADMINS, Membership, Role, User
from webapp.accounts.permissions import may_manage, require_manager, require_somewhere, visible_or_404
from webapp.accounts.tables import MemberTable
from webapp.common.editing import BEGAN, overtaken
from webapp.common.lists import list_page
from webapp.common.shown_once import page_shown_once, show_once, to_be_shown

Service = Callable[[Any, User], Any]


def person_list(request: HttpRequest) -> HttpResponse:
    require_somewhere(request.user, ADMINS)
    return list_page(
        request,
        title="People",
        rows=selectors.members(request.user),
        filter_class=MemberFilterSet,
        table_class=MemberTable,
        create=("accounts:invitation-create", "Invite"),
        empty="No members yet. Invite people to your teams.",
        actions=[
            (reverse("accounts:team-list"), "Teams"),
            (reverse("accounts:invitation-list"), "Invitations"),
        ],
    )


def person_detail(request: HttpRequest, pk: int) -> HttpResponse:
    """One person: memberships in the teams that the reader administers, the state of the account."""
    person = _person(request, pk)
    memberships = Membership.objects.visible_to(request.user).filter(user=person).select_related("team")
    context = {
        "title": person.username,
        "person": person,
        "memberships": memberships,
        "roles": Role.choices,
        "manages": may_manage(request.user, person),
        "locked": selectors.is_locked(person),
        "elsewhere": Membership.objects.filter(user=person).exclude(pk__in=memberships).count(),
        "is_me": person.pk == request.user.pk,
    }
    return render(request, "accounts/person_detail.html", context)


@require_POST
def member_role(request: HttpRequest, pk: int) -> HttpResponse:
    """Give a member another role."""
    membership = _membership(request, pk)
    form = RoleForm(request.POST)
    if not form.is_valid():
        messages.error(request, f"Not changed: {form.errors['role'][0]}")
        return redirect("accounts:person-detail", pk=membership.user_id)
    now, role = Role(membership.role), Role(form.cleaned_data["role"])
    if why := overtaken(request.POST.get(BEGAN, ""), now, now.label.lower(), role.label.lower()):
        messages.error(request, f"Not changed. {why}")
        return redirect("accounts:person-detail", pk=membership.user_id)
    try:
        services.set_role(membership.user, membership.team, role, actor=request.user)
        messages.success(request, f"{membership.user} is {role.label.lower()} of {membership.team} now.")
    except ValidationError as error:
        messages.error(request, f"Not changed: {error.messages[0]}")
    if not selectors.people(request.user).filter(pk=membership.user_id).exists():
        return redirect("overview")  # who gave up their own role administers nobody any more
    return redirect("accounts:person-detail", pk=membership.user_id)


def member_remove(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask, then take a member out of a team."""
    membership = _membership(request, pk)
    user, team = membership.user, membership.team
    blocked = ""
    if request.method == "POST":
        try:
            services.remove_member(request.user, membership)
            messages.success(request, f"{user} is no longer in {team}.")
            return redirect("accounts:person-list" if user.pk != request.user.pk else "overview")
        except ValidationError as error:
            blocked = error.messages[0]
    text = f"{user} will lose access to {team}. The account and its audit entries remain."
    return _confirm(request, user, f"Remove {user} from {team}?", text, f"Remove {user}", blocked)


def person_deactivate(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask, then switch an account off."""
    person = _person(request, pk)
    require_manager(request.user, person)
    blocked = "You cannot deactivate your own account." if person.pk == request.user.pk else ""
    if request.method == "POST" and not blocked:
        try:
            services.deactivate(request.user, person)
            messages.success(request, f"{person} is deactivated and logged out everywhere.")
            return redirect("accounts:person-detail", pk=pk)
        except ValidationError as error:
            blocked = error.messages[0]
    text = f"{person} will be logged out everywhere and cannot log in until an admin activates the account."
    return _confirm(request, person, f"Deactivate {person}?", text, f"Deactivate {person}", blocked)


@require_POST
def person_activate(request: HttpRequest, pk: int) -> HttpResponse:
    return _change(request, pk, services.activate, "{} can log in again.")


@require_POST
def person_unlock(request: HttpRequest, pk: int) -> HttpResponse:
    return _change(request, pk, services.unlock, "{} can try passwords again.")


def reset_link(request: HttpRequest, pk: int) -> HttpResponse:
    """Ask, then show a one-time link with which the person sets a new password."""
    person = _person(request, pk)
    require_manager(request.user, person)
    if (link := to_be_shown(request)) is not None:
        return page_shown_once(request, "accounts/link.html", link | {"crumbs": _crumbs(person)})
    if request.method != "POST":
        text = f"Anyone who opens it within a day can set {person}'s password. Send it only to {person}."
        return _confirm(request, person, f"Link for a new password of {person}?", text, "Create link")
    uid, token = services.make_reset_link(request.user, person)
    url = request.build_absolute_uri(reverse("accounts:password-set", args=[uid, token]))
    page = {
        "title": f"New password for {person}",
        "url": url,
        "text": f"With this link {person} can set a new password, once, within a day.",
        "back_url": reverse("accounts:person-detail", args=[pk]),
    }
    return show_once(request, request.path, page)


def _person(request: HttpRequest, pk: int) -> User:
    return get_object_or_404(selectors.people(request.user), pk=pk)


def _membership(request: HttpRequest, pk: int) -> Membership:
    return visible_or_404(Membership.objects.select_related("user", "team"), request.user, pk=pk)


def _change(request: HttpRequest, pk: int, service: Service, message: str) -> HttpResponse:
    person = _person(request, pk)
    service(request.user, person)
    messages.success(request, message.format(person))
    return redirect("accounts:person-detail", pk=pk)


def _crumbs(person: User) -> list[tuple[str, str]]:
    return [("People", reverse("accounts:person-list")), (person.username, _url(person))]


def _url(person: User) -> str:
    return reverse("accounts:person-detail", args=[person.pk])


def _confirm(
    request: HttpRequest, person: User, title: str, text: str, submit: str, blocked: str = ""
) -> HttpResponse:
    context = {
        "title": title,
        "text": text,
        "submit_label": submit,
        "blocked": blocked,
        "object": person,
        "cancel_url": _url(person),
        "crumbs": _crumbs(person),
    }
    return render(
        request,
        "components/confirm.html",
        context,
        status=409 if blocked and request.method == "POST" else 200,
    )
