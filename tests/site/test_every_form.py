"""Every form of accounts and inventory with empty, equal, zero, negative, huge, repeated, foreign and broken
values.

The forms are those of the apps' pages, which ACCESS (access.py) names. Whatever is sent, the answer is no
5xx. Where it is refused, an error stands at a field, and what was typed in is still there.
"""

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import unescape
from typing import Any

import pytest
from django import forms
from django.contrib.auth.tokens import default_token_generator
from django.db import transaction
from django.forms.forms import DeclarativeFieldsMetaclass
from django.http import QueryDict
from django.test import Client
from django.urls import resolve, reverse
from django.utils.encoding import force_bytes
from django.utils.http import urlsafe_base64_encode

from tests.site.access import ACCESS
from tests.site.page_forms import Data, PageForm, encoded, forms_of, hostile, kept
from tests.site.world import make_dc
from webapp.accounts.models import Team

# What a person enters where a field is empty as the form is first shown.
FILL = {
    "email": "new@example.org",
    "username": "newcomer",
    "number": "1",
    "text": "new-1",
    "textarea": "Because.",
    "password": "correct horse battery",
    "old_password": "the old password",
}
# Of some forms of the test's world, values other than those first shown.
CHOSEN: dict[str, Data] = {
    "inventory:link-create": {"a": ["east"], "b": ["west"]},
    "inventory:node-edit": {"port_from": ["31000"], "port_to": ["31099"]},
}
ACCEPTED = 1  # times that a view is given what its form takes, for each field: some compute
SECRETIVE = ("login",)  # does not say which of its fields is wrong
Made = tuple[type[forms.BaseForm], tuple[Any, ...], dict[str, Any]]


@dataclass(kw_only=True)
class Case:
    """A form of a page.

    made : how its view makes its form object (class, arguments); None where it has none.
    """

    page: str
    url: str
    form: PageForm
    filled: Data
    made: Made | None = None


class Person:
    """Somebody who is shown forms and sends them; every request is undone."""

    def __init__(self, world: Any, name: str) -> None:
        self.name = name
        self._client = Client() if name == "anonymous" else world.client(name)
        self._client.raise_request_exception = False

    @property
    def client(self) -> Client:
        """With the session that the person has: some requests end it."""
        client = copy.copy(self._client)
        client.cookies = copy.deepcopy(self._client.cookies)
        return client

    def send(self, case: Case, data: Data) -> Any:
        with transaction.atomic():
            if case.form.method == "get":
                response = self.client.get(case.url, QUERY_STRING=encoded(data))
            else:
                kind = "application/x-www-form-urlencoded"
                response = self.client.post(case.url, encoded(data), content_type=kind)
            transaction.set_rollback(True)
        return response

    def goes_to(self, url: str) -> str:
        """Where an address goes on to, for the person's session."""
        return str(self._client.get(url).headers["Location"])


def app_of(url: str) -> str:
    """The app whose view answers an address: "" is the site's own."""
    module = resolve(url).func.__module__.split(".")
    return module[1] if module[0] == "webapp" and len(module) > 2 else ""


def pages(world: Any, app: str, people: list[Person]) -> Iterator[tuple[Person, str, str]]:
    """(who sees it, name, address) of the pages of an app."""
    for name, access in ACCESS.items():
        if access.get is None or "ok" not in access.get.values():
            continue
        url = reverse(name, kwargs=access.args(world))
        if app_of(url) == app:
            yield from ((person, name, url) for person in people if access.get[person.name] == "ok")
    if app == "accounts":  # by the link in a mail
        user = world.users["viewer"]
        token = default_token_generator.make_token(user)
        link = {"uidb64": urlsafe_base64_encode(force_bytes(user.pk)), "token": token}
        url = people[-1].goes_to(reverse("accounts:password-set", kwargs=link))
        yield people[-1], "accounts:password-set", url


def cases(world: Any, app: str, people: list[Person]) -> Iterator[tuple[Person, Case]]:
    """The forms on the pages of an app, each once."""
    seen = set()
    for person, page, url in pages(world, app, people):
        response = person.client.get(url)
        if response.status_code != 200 or "text/html" not in response.headers["Content-Type"]:
            continue
        for form in forms_of(response.content.decode()):
            target = (form.action or url).partition("?")[0]
            key = (form.method, resolve(target).view_name, *form.controls)
            if key not in seen:
                seen.add(key)
                yield person, Case(page=page, url=target, form=form, filled=filled(world, page, form))


def filled(world: Any, page: str, form: PageForm) -> Data:
    """What a person sends who fills in all that is required."""
    sent = form.sent
    for control in form.controls.values():
        if any(sent.get(control.name, ())) or not (control.required or control.type == "checkbox"):
            continue
        value = FILL.get(control.name) or FILL.get(control.type, "1")
        sent[control.name] = [one for one in control.options if one][:1] if control.chooses else [value]
    named = {dc.name: str(dc.pk) for dc in world.dcs}
    chosen = CHOSEN.get(page, {}) if form.action == "" else {}
    return sent | {name: [named.get(value, value) for value in values] for name, values in chosen.items()}


@contextmanager
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Made]]:
    """Notes how forms are made out of what was sent."""
    made: list[Made] = []

    def note(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(one, QueryDict) for one in (*args, *kwargs.values())):
            made.append((cls, tuple(map(copy.copy, args)), {k: copy.copy(v) for k, v in kwargs.items()}))
        return type.__call__(cls, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(DeclarativeFieldsMetaclass, "__call__", note, raising=False)
        yield made


def formed(made: Made, data: Data) -> forms.BaseForm:
    """The form object as its view would make it of `data`, checked."""
    cls, args, kwargs = made
    sent = QueryDict(encoded(data))
    form = cls(
        *(sent if isinstance(one, QueryDict) else copy.copy(one) for one in args),
        **{k: sent if isinstance(one, QueryDict) else copy.copy(one) for k, one in kwargs.items()},
    )
    with transaction.atomic():
        form.full_clean()
    return form


class Checking:
    """Sends one form, and notes in `wrong` what should not be."""

    def __init__(self, person: Person, case: Case, foreign: list[str]) -> None:
        self._person, self._case, self._foreign = person, case, foreign
        self.wrong: list[str] = []
        self._sent: set[str] = set()
        self._accepted: Counter[tuple[str, ...]] = Counter()
        self._shown: set[str] = set()

    def run(self) -> None:
        for names, change in hostile(self._case.form, self._foreign):
            data = {**self._case.filled, **change}
            says = (
                f"{self._case.page} with { ({name: [text[:24] for text in data[name]] for name in names}) }"
            )
            try:
                self._try(says, names, data)
            except Exception as error:
                self.wrong.append(f"{says}: {type(error).__name__}: {error}"[:300])

    def _try(self, says: str, names: tuple[str, ...], data: Data) -> None:
        if self._case.made is None or self._case.page in SECRETIVE:
            self._answered(says, data)
            return
        form = formed(self._case.made, data)
        if form.errors:
            self._refused(says, names, data, form)
        elif self._accepted[names] < ACCEPTED and (cleaned := repr(form.cleaned_data)) not in self._sent:
            self._sent.add(cleaned)
            self._accepted[names] += 1
            self._answered(says, data)

    def _answered(self, says: str, data: Data) -> Any:
        response = self._person.send(self._case, data)
        if response.status_code >= 500:
            self.wrong.append(f"{says}: {response.status_code}")
        elif response.status_code == 422:
            form = (response.context or {}).get("form")
            if form is not None and not set(form.errors) - {"__all__"}:
                self.wrong.append(f"{says}: refused without an error at a field: {dict(form.errors)}")
        return response

    def _refused(self, says: str, names: tuple[str, ...], data: Data, form: forms.BaseForm) -> None:
        if not set(form.errors) - {"__all__"}:
            self.wrong.append(f"{says}: an error, but at no field: {dict(form.errors)}")
        for name in names:
            if name in form.fields and not form.fields[name].disabled and not form[name].is_hidden:
                self._stays(says, name, data, form[name].value())
        if set(names) <= self._shown:
            return
        self._shown.update(names)
        response = self._answered(says, data)
        if (
            response.status_code == 302
        ):  # a form of one field on a page of others: the page that follows says it
            return
        page = response.content.decode()
        for name, errors in form.errors.items():
            place = (
                f'id="{form[name].id_for_label or form[name].auto_id}_error"' if name in form.fields else ""
            )
            if name in form.fields and form[name].is_hidden:
                place = ""
            if place not in page or any(str(one) not in unescape(page) for one in errors):
                self.wrong.append(f"{says}: the page does not show at {name}: {list(errors)}")

    def _stays(self, says: str, name: str, data: Data, value: Any) -> None:
        sent = [kept(text) for text in data[name]]
        if value not in (sent, sent[-1] if sent else None) and not (
            value in ("", None, []) and not any(sent)
        ):
            self.wrong.append(f"{says}: {name} became {value!r}"[:300])


APPS = ("", "accounts", "inventory")


def form_classes(app: str, base: type[Any] = forms.BaseForm) -> Iterator[type[Any]]:
    """The form classes of an app that have fields."""
    for cls in base.__subclasses__():
        if cls.__module__.startswith(f"webapp.{app}.") and getattr(cls, "base_fields", None):
            yield cls
        yield from form_classes(app, cls)


@pytest.mark.long
@pytest.mark.django_db
@pytest.mark.parametrize("app", APPS)
def test_every_form_bears_whatever_is_sent(
    world: Any, app: str, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.EMAIL_HOST = "mail.example.org"  # without one, nobody is asked for an address
    for user in world.users.values():
        user.set_password(FILL["old_password"])
        user.save()
    foreign = [str(make_dc(Team.objects.get(name="Others"), "foreign").pk), "999999999"]
    wrong, used = list[str](), set[type[Any]]()
    people = [Person(world, name) for name in ("tenant", "admin", "anonymous")]
    for person, case in cases(world, app, people):
        with watching(monkeypatch) as made:
            response = person.send(case, case.filled)
        case.made = made[-1] if made else None
        used.update(one[0] for one in made)
        if response.status_code not in (200, 302, 204):
            errors = getattr((response.context or {}).get("form"), "errors", "")
            wrong.append(f"{case.page} as a person fills it in: {response.status_code} {dict(errors or {})}")
        checking = Checking(person, case, foreign)
        checking.run()
        wrong += checking.wrong
    assert not wrong, "\n".join(wrong)
    missed = {cls for cls in form_classes(app) if not any(issubclass(one, cls) for one in used)}
    assert not missed, f"no page shows these forms: say in access.py where they are: {missed}"
