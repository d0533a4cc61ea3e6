"""Login and logout, each with its audit row, and what a locked-out one sees."""

import math
from typing import Any

from axes.helpers import get_cool_off
from axes.models import AccessAttempt
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView as DjangoLoginView
from django.contrib.auth.views import LogoutView as DjangoLogoutView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.utils.decorators import method_decorator

from webapp.accounts import limits, services
from webapp.accounts.forms import LoginForm
from webapp.accounts.middleware import for_everyone
from webapp.accounts.models import User
from webapp.accounts.views.refused import address_of


@method_decorator(login_not_required, name="dispatch")
class LoginView(DjangoLoginView):
    """The login page; who is logged in already goes on."""

    redirect_authenticated_user = True
    authentication_form = LoginForm

    def get_context_data(self, **kwargs: Any) -> dict[str, Any]:
        context = super().get_context_data(**kwargs)
        context.pop("site", None)  # Django's, of a name that every page of ours has for its own
        return context | {"locked_out": False, "locked_minutes": 0, "typed_name": ""}

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        """Whoever has typed too many wrong passwords tries no further one."""
        name, address = request.POST.get("username", ""), address_of(request)
        if wait_s := limits.wait_for_login(name, address):
            services.note_failed_login(name[:150], address=address, locked=True)
            return locked_page(request, wait_s)
        return super().post(request, *args, **kwargs)

    def form_valid(self, form: AuthenticationForm) -> HttpResponse:
        response = super().form_valid(form)
        began(self.request, form.get_user())
        return response

    def form_invalid(self, form: AuthenticationForm) -> HttpResponse:
        name = form.cleaned_data.get("username")
        if name and form.cleaned_data.get("password"):  # else no password was tried
            locked = bool(getattr(self.request, "axes_locked_out", False))
            address = address_of(self.request)
            limits.count_wrong_password(name, address)
            services.note_failed_login(name, address=address, locked=locked)
        return super().form_invalid(form)


def began(request: HttpRequest, user: Any) -> None:
    """Note the session that a login just began."""
    services.note_login(
        user,
        request.session,
        address=address_of(request),
        browser=request.headers.get("User-Agent", ""),
    )


@method_decorator(for_everyone, name="dispatch")
class LogoutView(DjangoLogoutView):
    """Ends the session; POST only."""

    def post(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        user, key = request.user, request.session.session_key
        response = super().post(request, *args, **kwargs)
        if isinstance(user, User):  # LoginRequiredMiddleware lets nobody else through
            services.note_logout(user, key)
        return response


def locked_out(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
    """The login page after too many wrong passwords: says so, and for how much longer."""
    name = request.POST.get("username", "")
    limits.count_wrong_password(name, address_of(request))
    return locked_page(request, 60.0 * minutes_left(name, address_of(request)))


def locked_page(request: HttpRequest, wait_s: float) -> HttpResponse:
    """The login page that takes no password for so many seconds."""
    name, minutes = request.POST.get("username", ""), max(1, math.ceil(wait_s / 60))
    context = {
        "form": LoginForm(request),
        "typed_name": name[:150],
        "next": request.POST.get("next", ""),
        "locked_out": True,
        "locked_minutes": minutes,
    }
    response = render(request, "registration/login.html", context, status=429)
    response["Retry-After"] = str(60 * minutes)
    return response


def minutes_left(username: str, address: str | None) -> int:
    """Until the last wrong password of `username` from `address` is forgotten, rounded up."""
    wait = get_cool_off()
    if wait is None:
        return 0
    tried = AccessAttempt.objects.filter(username=username, ip_address=address)
    last = tried.order_by("-attempt_time").values_list("attempt_time", flat=True).first()
    remaining = (last or timezone.now()) + wait - timezone.now()
    return max(1, math.ceil(remaining.total_seconds() / 60))
