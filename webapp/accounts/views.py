"""Login, and what a locked-out one sees."""

from typing import Any

from axes.helpers import get_cool_off
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.views import LoginView as DjangoLoginView
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.decorators import method_decorator

from webapp.accounts.middleware import for_everyone


@method_decorator(login_not_required, name="dispatch")
class LoginView(DjangoLoginView):
    """The login page; who is logged in already goes on."""

    redirect_authenticated_user = True
    extra_context = {"locked_out": False, "locked_minutes": 0}


def locked_out(request: HttpRequest, credentials: Any = None, *args: Any, **kwargs: Any) -> HttpResponse:
    """The login page after too many wrong passwords: says so, and for how long."""
    wait = get_cool_off(request)
    context = {
        "form": AuthenticationForm(request),
        "next": request.POST.get("next", ""),
        "locked_out": True,
        "locked_minutes": round(wait.total_seconds() / 60) if wait else 0,
    }
    return render(request, "registration/login.html", context, status=429)


@for_everyone
def me(request: HttpRequest) -> HttpResponse:
    """One's own account: who one is, and what one may do in which team."""
    context = {"title": "My account", "memberships": request.user.memberships.select_related("team")}
    return render(request, "accounts/me.html", context)
