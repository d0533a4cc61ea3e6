"""Setting a new password after a forgotten one.

By mail where mail is configured, else by an admin's one-time link.
"""

from typing import Any

from django.contrib.auth import views as auth
from django.contrib.auth.decorators import login_not_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.response import TemplateResponse
from django.urls import reverse_lazy
from django.utils.decorators import method_decorator
from django.views.decorators.http import require_GET

from webapp.accounts import limits, mail
from webapp.accounts.forms import NewPasswordForm, ResetMailForm
from webapp.accounts.reset_links import reset_tokens
from webapp.accounts.views.refused import address_of, refused
from webapp.common.throttle import of_address


@method_decorator(login_not_required, name="dispatch")
class PasswordResetView(auth.PasswordResetView):
    """Asks for an address and says the same whether or not it is known."""

    form_class = ResetMailForm
    template_name = "accounts/password_forgotten.html"
    email_template_name = "accounts/password_mail.txt"
    subject_template_name = "accounts/password_mail_subject.txt"
    success_url = reverse_lazy("accounts:password-sent")
    token_generator = reset_tokens

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if not mail.configured():
            return render(request, "accounts/password_ask.html", {"title": "Forgotten password"})
        if request.method == "POST":
            if wait_s := limits.reset_questions().wait(of_address(address_of(request))):
                return refused(request, wait_s)
            limits.reset_questions().count(of_address(address_of(request)))
        return super().dispatch(request, *args, **kwargs)


@require_GET
@login_not_required
def password_sent(request: HttpRequest) -> HttpResponse:
    return render(request, "accounts/password_sent.html", {"title": "Forgotten password"})


@method_decorator(login_not_required, name="dispatch")
class PasswordSetView(auth.PasswordResetConfirmView):
    """Sets a new password for whoever holds the link; Django moves its token out of the address first."""

    form_class = NewPasswordForm
    template_name = "accounts/password_set.html"
    success_url = reverse_lazy("accounts:password-done")

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        address = of_address(address_of(request))
        if wait_s := limits.wrong_links().wait(address):
            return refused(request, wait_s)
        response = super().dispatch(request, *args, **kwargs)
        if isinstance(response, TemplateResponse) and not self.validlink:
            limits.wrong_links().count(address)
        return response

    token_generator = reset_tokens


@require_GET
@login_not_required
def password_done(request: HttpRequest) -> HttpResponse:
    return render(request, "accounts/password_done.html", {"title": "New password"})
