"""One's own account: who one is, what one may do where, where one is logged in."""

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_POST

from webapp.accounts import selectors, services
from webapp.accounts.forms import ChangePasswordForm, ProfileForm
from webapp.accounts.middleware import for_everyone
from webapp.accounts.models import Role, User
from webapp.common.formkit import form_page

MAY = {
    Role.VIEWER: "Sees the team's data centres, nodes, links, plans and runs.",
    Role.OPERATOR: "Sees and changes the team's inventory and plans. Launches and stops runs.",
    Role.ADMIN: "Everything that operators do. Also manages people and invitations, and reads the team's "
    "audit log.",
    Role.TENANT: "Requests prefill, makes keys and sees its own usage. Does not see the team's plans and "
    "runs.",
}


@for_everyone
@never_cache
def me(request: HttpRequest) -> HttpResponse:
    """Names, roles by team and what they allow, open sessions."""
    user = _user(request)
    memberships = [(one, MAY[Role(one.role)]) for one in user.memberships.select_related("team")]
    context = {
        "title": "My account",
        "crumbs": [],
        "memberships": memberships,
        "sessions": selectors.open_sessions(user),
        "session_key": request.session.session_key,
        "time_zone": user.time_zone,
    }
    return render(request, "accounts/me.html", context)


@for_everyone
@transaction.atomic
def edit(request: HttpRequest) -> HttpResponse:
    """Change one's names, e-mail and time zone."""
    form = ProfileForm(request.POST or None, instance=User.objects.get(pk=_user(request).pk))
    if request.method == "POST" and form.is_valid():
        try:
            services.change_profile(_user(request), **form.cleaned_data)
            messages.success(request, "Saved.")
            return redirect("accounts:me")
        except ValidationError as error:
            form.take_errors(error)
    return _form(request, form, "Change my account", "Save changes")


@for_everyone
@sensitive_post_parameters()
def password(request: HttpRequest) -> HttpResponse:
    """Choose a new password; every other session ends."""
    user = _user(request)
    form = ChangePasswordForm(user, request.POST or None)
    if request.method == "POST" and form.is_valid():
        key = request.session.session_key
        services.change_password(user, form.cleaned_data["new_password1"], keep_session=key)
        update_session_auth_hash(request, user)
        services.move_session(user, key, request.session.session_key)
        messages.success(request, "The password is changed. Every other session has ended.")
        return redirect("accounts:me")
    return _form(request, form, "Change password", "Change password")


@require_POST
@for_everyone
def end_sessions(request: HttpRequest) -> HttpResponse:
    """Log out everywhere but here."""
    ended = services.end_other_sessions(_user(request), request.session.session_key)
    messages.success(request, f"{ended} other session{'' if ended == 1 else 's'} ended.")
    return redirect("accounts:me")


def _user(request: HttpRequest) -> User:
    user = request.user
    assert isinstance(user, User)  # LoginRequiredMiddleware let nobody else through
    return user


def _form(request: HttpRequest, form: object, title: str, submit: str) -> HttpResponse:
    back = reverse("accounts:me")
    return form_page(request, form, title, back=back, crumbs=[("My account", back)], submit=submit)
