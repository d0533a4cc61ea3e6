"""Forms of accounts. They check and clean; saving is the services' part."""

from functools import cache
from typing import Any
from zoneinfo import available_timezones

from django import forms
from django.contrib.auth.forms import (
    AuthenticationForm,
    BaseUserCreationForm,
    PasswordChangeForm,
    PasswordResetForm,
    SetPasswordForm,
)
from django.core.validators import MaxLengthValidator

from webapp.accounts import selectors, services
from webapp.accounts.models import OPERATORS, Role, Team, User
from webapp.common.asked_once import key_field
from webapp.common.editing import EditForm
from webapp.common.formkit import PlainSelect, Sectioned

ROLE_HELP = (
    "Viewers read. Operators also change inventory, plans and runs. Admins also manage people and read the "
    "audit log. Tenants request prefill and see only their own tenancies."
)

PASSWORD_HELP = "At least 8 characters. Not a common password, not only digits, not similar to your name."


@cache
def _time_zones() -> list[str]:
    """All that this machine knows: reading their names takes a file each."""
    return sorted(available_timezones())


class LoginForm(AuthenticationForm):
    """User name and password. Of a name longer than those of accounts no password is tried."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        longest: Any = User._meta.get_field("username").max_length
        self.fields["username"].validators.append(MaxLengthValidator(longest))


class ProfileForm(Sectioned, EditForm):
    """What a person says of themselves."""

    time_zone = forms.ChoiceField(
        required=False,
        widget=PlainSelect,
        choices=lambda: [("", "Time zone of the browser"), *((zone, zone) for zone in _time_zones())],
        help_text="The site shows times in this zone.",
    )

    class Meta:
        model = User
        fields = ["first_name", "last_name", "email", "time_zone"]
        labels = {"email": "E-mail"}


class TeamForm(Sectioned, EditForm):
    class Meta:
        model = Team
        fields = ["name"]


class InvitationForm(Sectioned, forms.Form):
    """Who is invited into which of the teams that the user is an admin of, as what."""

    email = forms.EmailField(
        label="E-mail", help_text="The person you invite. Anyone who opens the link can use it."
    )
    team = forms.ModelChoiceField(Team.objects.none(), empty_label=None)
    role = forms.ChoiceField(choices=Role.choices, initial=Role.VIEWER, help_text=ROLE_HELP)

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["team"].queryset = Team.objects.administered_by(user)  # type: ignore[attr-defined]


class PasswordWords(forms.BaseForm):
    """Says in one sentence what AUTH_PASSWORD_VALIDATORS want, where Django has a list."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for first, second in (("password1", "password2"), ("new_password1", "new_password2")):
            if first in self.fields:
                self.fields[first].help_text = PASSWORD_HELP
                self.fields[second].label, self.fields[second].help_text = "Repeat the password", ""


class ChangePasswordForm(PasswordWords, Sectioned, PasswordChangeForm):
    """The old password, and twice the new one."""


class RoleForm(forms.Form):
    role = forms.ChoiceField(choices=Role.choices)


class JoinForm(PasswordWords, Sectioned, BaseUserCreationForm):
    """The new account of somebody who was invited."""

    class Meta(BaseUserCreationForm.Meta):
        model = User
        fields = ("username", "first_name", "last_name")
        labels = {"username": "User name"}
        help_texts = {"username": "Letters, digits and @ . + - _"}


class NewPasswordForm(PasswordWords, SetPasswordForm):
    """A password chosen over a one-time link."""

    def save(self, commit: bool = True) -> Any:
        return services.reset_password(self.user, self.cleaned_data["new_password1"])


class ResetMailForm(PasswordResetForm):
    """Sends a link to each active account of an address, not more often than every few minutes."""

    def get_users(self, email: str) -> Any:
        for user in super().get_users(email):
            if not selectors.reset_mail_is_recent(user):
                services.note_reset_mail(user)
                yield user


def team_field(form: forms.BaseForm, user: Any) -> None:
    """Offer the teams in which `user` may operate; with just one there is nothing to choose."""
    teams = Team.objects.with_role(user, OPERATORS)
    field = forms.ModelChoiceField(teams, empty_label=None)
    only = list(teams[:2])
    if len(only) == 1:
        field.widget = forms.HiddenInput()
        field.initial = only[0]
    form.fields["team"] = field


class ForTeam(forms.Form):
    """Base of forms for something new of a team: which one, and a key by which it is made once."""

    def __init__(self, *args: Any, user: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        team_field(self, user)
        key_field(self)
