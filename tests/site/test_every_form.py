"""Every form of the site with empty, equal, zero, negative, huge, repeated, foreign and broken values.

The forms are those of the pages that ACCESS (access.py) names. Whatever is sent, the answer is no 5xx. Where
it is refused, an error stands at a field, and what was typed in is still there. The short test sends a few
values to all fields of a form at once; the long one tries each field with each value.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from html import unescape
from pathlib import Path
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
from tests.site.addresses import addresses
from tests.site.page_forms import (
    Data,
    PageForm,
    encoded,
    forms_in_templates,
    forms_of,
    hostile,
    kept,
    one_by_one,
    swept,
)
from tests.site.swap_runs import swap_job
from tests.site.test_plan_replicas import compare, plan_of_two
from tests.site.world import make_dc
from webapp.accounts.models import Team
from webapp.jobs.services import launch_swap

# What a person enters where a field is empty as the form is first shown.
FILL = {
    "email": "someone@example.org",
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
# Of some pages, what to ask of them besides: they have forms that are not there at first.
ASKED = {"planning:plan-detail": "gpus-0=3"}
ACCEPTED = 1  # times that a view is given what its form takes, for each field: some compute
SENT_SWEEPS = 2  # of the few values
# Pages whose form wants a file, and its field: no text stands for one.
UPLOADS = {"traces:trace-create": "trace"}
UNKEPT = (forms.BooleanField, forms.FileField)  # a box is ticked or not, whatever text it sends
SECRETIVE = ("login",)  # does not say which of its fields is wrong
# Each is a test of its own in the long run: the views of an app; "" are the site's own.
APPS = (
    "",
    "accounts",
    "inventory",
    "planning",
    "placement",
    "schedules",
    "design",
    "traces",
    "jobs",
    "live",
    "prefill",
)
TEMPLATES = Path(__file__).resolve().parents[2] / "templates"
Made = tuple[type[forms.BaseForm], tuple[Any, ...], dict[str, Any]]


@dataclass(kw_only=True)
class Case:
    """A form of a page.

    made : how its view makes its form object (class, arguments); None where it has none.
    templates : that the page was made of.
    """

    page: str
    url: str
    form: PageForm
    filled: Data
    made: Made | None = None
    templates: set[str] = field(default_factory=set)

    @property
    def sent_to(self) -> str:
        """The URL name that the form is sent to."""
        return resolve(self.url).view_name


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
    module = resolve(url.partition("?")[0]).func.__module__.split(".")
    return module[1] if module[0] == "webapp" and len(module) > 2 else ""


def pages(world: Any, people: list[Person]) -> Iterator[tuple[Person, str, str]]:
    """(who sees it, name, address) of the site's pages."""
    for _ in range(2):  # addresses of runs are those of the first; the second waits in the queue
        world.launch()
    for name, url in addresses(world).items():
        urls = [url, f"{url}?{ASKED[name]}"] if name in ASKED else [url]
        for person in people:
            yield from ((person, name, one) for one in urls if (ACCESS[name].get or {})[person.name] == "ok")
    swapping = launch_swap(world.users["admin"], world.team, name="swapping", document=swap_job(world))
    yield people[1], "jobs:run-clone", reverse("jobs:run-clone", args=[swapping.pk])
    compared = compare(world.client("operator"), plan_of_two(world, 1))
    yield people[1], "planning:plan-detail", reverse("planning:plan-detail", args=[compared.pk])
    user = world.users["viewer"]  # the page that a link in a mail leads to
    token = default_token_generator.make_token(user)
    link = {"uidb64": urlsafe_base64_encode(force_bytes(user.pk)), "token": token}
    yield (
        people[-1],
        "accounts:password-set",
        people[-1].goes_to(reverse("accounts:password-set", kwargs=link)),
    )


def cases(world: Any, people: list[Person], of: Callable[[str], bool]) -> Iterator[tuple[Person, Case]]:
    """The forms on the pages whose addresses are `of` what is asked for, each once."""
    seen = set()
    for person, page, url in pages(world, people):
        if not of(url):
            continue
        response = person.client.get(url)
        if response.status_code != 200 or "text/html" not in response.headers["Content-Type"]:
            continue
        templates = {template.name for template in response.templates}
        for form in forms_of(response.content.decode()):
            target = (form.action or url).partition("?")[0]
            key = (form.method, resolve(target).view_name, *form.controls)
            if form.fields and key not in seen:
                seen.add(key)
                case = Case(page=page, url=target, form=form, filled=filled(world, page, form))
                yield person, replace(case, templates=templates)


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


def confirmed(case: Case, page: str) -> Data:
    """What a person ticks where a form, once sent, asks to be confirmed by a box."""
    hidden = {one.name for one in case.form.fields if one.type == "hidden"}
    boxes = [one for form in forms_of(page) for one in form.fields if one.type == "checkbox"]
    return {one.name: one.options[:1] for one in boxes if one.name in hidden}


@contextmanager
def watching(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Made]]:
    """Notes how forms are made out of what was sent."""
    calls: list[Made] = []

    def note(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(one, QueryDict) for one in (*args, *kwargs.values())):
            calls.append((cls, tuple(map(copy.copy, args)), {k: copy.copy(v) for k, v in kwargs.items()}))
        return type.__call__(cls, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(DeclarativeFieldsMetaclass, "__call__", note, raising=False)
        yield calls


def formed(call: Made, data: Data) -> forms.BaseForm:
    """The form object as its view would make it of `data`, checked."""
    cls, args, kwargs = call
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
        self._accepted: Counter[tuple[str, ...]] = Counter()
        self._shown, self._sent = set[str](), set[str]()

    def every_value(self) -> None:
        """Each field with each value; sent where the form takes it, and once where it does not."""
        for names, change in hostile(self._case.form, self._foreign):
            self._noting(names, change, self._try)

    def few_values(self) -> None:
        """All fields at once with each of a few values, most of them only checked; then each field alone."""
        for number, change in enumerate(swept(self._case.form)):
            sends = number < SENT_SWEEPS or not self._is_read
            self._noting(tuple(change), change, self._send if sends else self._refused)
        for names, change in one_by_one(self._case.form):
            self._noting(names, change, self._refused)

    def _noting(self, names: tuple[str, ...], change: Data, check: Callable[..., Any]) -> None:
        """Do one check, and note an exception as well."""
        data = {**self._case.filled, **change}
        says = f"{self._case.page} with { ({name: [text[:24] for text in data[name]] for name in names}) }"
        try:
            check(says[:300], names, data)
        except Exception as error:
            self.wrong.append(f"{says[:300]}: {type(error).__name__}: {error}"[:600])

    def _try(self, says: str, names: tuple[str, ...], data: Data) -> None:
        form = self._refused(says, names, data)
        if form is None:
            self._answered(says, data)
        elif form.errors:
            if not set(names) <= self._shown:
                self._shown.update(names)
                self._shows(says, form, self._answered(says, data))
        elif self._accepted[names] < ACCEPTED and (cleaned := repr(form.cleaned_data)) not in self._sent:
            self._sent.add(cleaned)
            self._accepted[names] += 1
            self._answered(says, data)

    def _send(self, says: str, names: tuple[str, ...], data: Data) -> None:
        form = self._refused(says, names, data)
        response = self._answered(says, data)
        if form is not None and form.errors:
            self._shows(says, form, response)

    @property
    def _is_read(self) -> bool:
        """Whether the form object can be made here, and says what is wrong."""
        return self._case.made is not None and self._case.page not in SECRETIVE

    def _refused(self, says: str, names: tuple[str, ...], data: Data) -> forms.BaseForm | None:
        """The checked form, of which it is noted where an error or a value is lost."""
        if self._case.made is None or not self._is_read:
            return None
        form = formed(self._case.made, data)
        if form.errors and not set(form.errors) - {"__all__"}:
            self.wrong.append(f"{says}: an error, but at no field: {dict(form.errors)}")
        for name in names if form.errors else ():
            field = form.fields.get(name)
            if not (field is None or field.disabled or isinstance(field, UNKEPT) or form[name].is_hidden):
                self._stays(says, name, data, form[name].value())
        return form

    def _answered(self, says: str, data: Data) -> Any:
        response = self._person.send(self._case, data)
        if response.status_code >= 500:
            self.wrong.append(f"{says}: {response.status_code}")
        elif response.status_code == 422:
            form = (response.context or {}).get("form")
            if form is not None and not set(form.errors) - {"__all__"}:
                self.wrong.append(f"{says}: refused without an error at a field: {dict(form.errors)}")
        return response

    def _shows(self, says: str, form: forms.BaseForm, response: Any) -> None:
        """Note errors that the page does not show at their fields."""
        if response.status_code == 302:  # a form of one field among others: the page that follows says it
            return
        page = response.content.decode()
        text = unescape(page)
        for name, errors in form.errors.items():
            visible = name in form.fields and not form[name].is_hidden
            place = f'id="{form[name].id_for_label or form[name].auto_id}_error"' if visible else ""
            if place not in page or any(str(one) not in text for one in errors):
                self.wrong.append(f"{says}: the page does not show at {name}: {list(errors)}")

    def _stays(self, says: str, name: str, data: Data, value: Any) -> None:
        sent = [kept(text) for text in data[name]]
        if value not in (sent, sent[-1] if sent else None) and not (
            value in ("", None, []) and not any(sent)
        ):
            self.wrong.append(f"{says}: {name} became {value!r}"[:600])


def form_classes(base: type[Any] = forms.BaseForm) -> Iterator[type[Any]]:
    """The form classes of the site that have fields."""
    for cls in base.__subclasses__():
        if cls.__module__.startswith("webapp.") and getattr(cls, "base_fields", None):
            yield cls
        yield from form_classes(cls)


class Sending:
    """Goes through the forms of the site's pages; `found` are all, `used` the form classes they are of."""

    def __init__(self, world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        for user in world.users.values():
            user.set_password(FILL["old_password"])
            user.save()
        self._world, self._monkeypatch = world, monkeypatch
        self._foreign = [str(make_dc(Team.objects.get(name="Others"), "foreign").pk), "999999999"]
        self.found: list[Case] = []
        self.used: set[type[Any]] = set()
        self.wrong: list[str] = []

    def run(self, check: Callable[[Checking], None], of: Callable[[str], bool] = lambda url: True) -> None:
        people = [Person(self._world, name) for name in ("tenant", "admin", "anonymous")]
        for person, case in cases(self._world, people, of):
            self.found.append(case)
            self._fill_in(person, case)
            checking = Checking(person, case, self._foreign)
            check(checking)
            self.wrong += checking.wrong

    def missed(self) -> list[str]:
        """The forms of the site that were not found: access.py is to say where they are."""
        unused = {cls for cls in form_classes() if not any(issubclass(one, cls) for one in self.used)}
        addresses = {case.sent_to for case in self.found}
        templates = {""}.union(*(case.templates for case in self.found))
        return [f"no page that was opened shows {cls}" for cls in unused] + [
            f"no page that was opened shows the form of {template} to {name or 'the page itself'}"
            for template, names in forms_in_templates(TEMPLATES).items()
            for name in names
            if (name not in addresses if name else template not in templates)
        ]

    def _fill_in(self, person: Person, case: Case) -> None:
        with watching(self._monkeypatch) as calls:
            response = person.send(case, case.filled)
            if response.status_code == 422 and (more := confirmed(case, response.content.decode())):
                response = person.send(case, {**case.filled, **more})
        case.made = calls[-1] if calls else None
        self.used.update(one[0] for one in calls)
        if response.status_code not in (200, 302, 204):
            errors = getattr((response.context or {}).get("form"), "errors", "")
            if list(errors or ()) == [UPLOADS.get(case.page)]:
                return
            outcome = f"{response.status_code} {dict(errors or {})}"
            self.wrong.append(f"{case.page} as a person fills it in: {outcome}")


@pytest.fixture
def sending(world: Any, monkeypatch: pytest.MonkeyPatch, settings: Any) -> Sending:
    settings.EMAIL_HOST = "mail.example.org"  # without one, nobody is asked for an address
    return Sending(world, monkeypatch)


@pytest.mark.timeout(1800)
@pytest.mark.django_db
def test_every_form_bears_a_few_values(sending: Sending) -> None:
    sending.run(Checking.few_values)
    assert {app_of(case.url) for case in sending.found} == set(APPS)
    assert not (wrong := [*sending.wrong, *sending.missed()]), "\n".join(wrong)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.django_db
@pytest.mark.parametrize("app", APPS)
def test_every_form_bears_whatever_is_sent(sending: Sending, app: str) -> None:
    sending.run(Checking.every_value, lambda url: app_of(url) == app)
    assert not sending.wrong, "\n".join(sending.wrong)
