"""A reload repeats nothing; what is shown once is shown once; no edit overwrites another without a word."""

from collections.abc import Callable
from typing import Any

import pytest
from django.urls import reverse

from tests.site.access import ACCESS
from tests.site.tenancies import give_key, grant
from webapp.accounts.models import AuditEntry, Invitation, Role
from webapp.inventory.models import JoinToken
from webapp.prefill.models import ApiKey

# Answered with a part of a page, to the script of the page that asked.
PARTS = {
    "planning:plan-refine",
    "planning:plan-refine-stop",
    "planning:plan-place",
    "planning:plan-model",
    "planning:plan-cross-dc-compare",
    "planning:plan-cross-dc-stop",
}
# What they take, where the matrix of addresses sends nothing or too little.
FORMS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "accounts:invitation-create": lambda w: {"email": "a@b.org", "team": w.team.pk, "role": Role.VIEWER},
    "accounts:me-edit": lambda w: {"first_name": "Ada"},
    "inventory:node-create": lambda w: {
        "name": "fresh",
        "pool": w.dcs[0].pools.get().pk,
        "gpus": 1,
        "device": "emulated",
        "host": "127.0.0.1",
    },
    "inventory:datacenter-create": lambda w: {
        "team": w.team.pk,
        "name": "fresh",
        "intra_gbps": 100,
        "gpu_type": "h100",
        "price_per_gpu_hour": 2,
    },
    "inventory:link-edit": lambda w: {"latency_ms": 11, "bandwidth_gbps": 1},
    "inventory:pool-edit": lambda w: {"price_per_gpu_hour": 3},
    "inventory:pool-create": lambda w: {"dc": w.dcs[0].pk, "gpu_type": "h100", "price_per_gpu_hour": 3},
    "inventory:node-drain": lambda w: {"runs": "finish"},
    "inventory:datacenter-drain": lambda w: {"runs": "finish"},
    "prefill:key-create": lambda w: {"tenancy": grant(w).pk, "name": "new"},
}
CHANGING = sorted(name for name, access in ACCESS.items() if access.post is not None and ":" in name)


@pytest.mark.parametrize("name", [name for name in CHANGING if not name.startswith("v1:")])
def test_what_changes_something_answers_with_a_redirect(world: Any, name: str) -> None:
    """Of every address that takes a POST: a page that a browser could send again has changed nothing."""
    access = ACCESS[name]
    url = reverse(name, kwargs=access.args(world))
    data = {**access.data, **FORMS.get(name, lambda w: {})(world)}
    for person in ("admin", "tenant"):
        before = AuditEntry.objects.count()
        answer = world.client(person).post(url, data)
        written = AuditEntry.objects.count() - before
        assert answer.status_code < 500
        if name not in PARTS and answer.status_code == 200 and "html" in answer.get("Content-Type", ""):
            assert not written, f"{name} answers {person} with a page that a reload would send again"
    if name in FORMS:
        assert AuditEntry.objects.exists()


ONCE: dict[str, tuple[str, Callable[[Any], dict[str, Any]], Any]] = {
    "prefill:key-create": ("tenant", lambda w: {}, ApiKey),
    "prefill:key-rotate": ("tenant", lambda w: {"pk": give_key(w)[0].pk}, ApiKey),
    "inventory:node-create": ("admin", lambda w: {}, JoinToken),
    "inventory:node-join-command": ("admin", lambda w: {"pk": w.nodes[0].pk}, JoinToken),
    "accounts:invitation-create": ("admin", lambda w: {}, Invitation),
    "accounts:person-password": ("admin", lambda w: {"pk": w.users["viewer"].pk}, AuditEntry),
}


@pytest.mark.parametrize("name", ONCE)
def test_what_is_shown_once_is_made_once(world: Any, name: str) -> None:
    person, args, model_class = ONCE[name]
    client, url = world.client(person), reverse(name, kwargs=args(world))
    data = {**ACCESS[name].data, **FORMS.get(name, lambda w: {})(world)}
    before = model_class.objects.count()
    answer = client.post(url, data)
    assert answer.status_code == 302
    assert "no-store" in answer["Cache-Control"]
    there = answer["Location"]
    page = client.get(there)
    assert "no-store" in page["Cache-Control"]
    assert "cannot be shown again" in page.content.decode()
    again = client.get(there, follow=True)
    assert "cannot be shown again" not in again.content.decode()
    assert model_class.objects.count() == before + 1


def test_what_is_shown_once_is_for_who_made_it(world: Any) -> None:
    """The cookie is of one address and one person, and nobody can write it."""
    client, url = world.client("admin"), reverse("inventory:node-join-command", args=[world.nodes[0].pk])
    client.post(url)
    name, cookie = next((key, one.value) for key, one in client.cookies.items() if key.startswith("once-"))
    morsel = client.cookies[name]
    assert (morsel["path"], morsel["httponly"], morsel["samesite"]) == (url, True, "Strict")
    for person, value in (("operator", cookie), ("admin", cookie[:-1] + ("A" if cookie[-1] != "A" else "B"))):
        other = world.client(person)
        other.cookies[name] = value
        assert other.get(url).status_code == 302


EDITS = sorted(name for name in ACCESS if name.endswith("-edit"))
# Of each form: a field, what somebody else sets, what is entered, and how the two are told.
CHANGES = {
    "accounts:me-edit": ("first_name", "Grace", "Ada"),
    "accounts:team-edit": ("name", "Lab", "Group"),
    "inventory:datacenter-edit": ("place", "Lyon", "Oslo"),
    "inventory:link-edit": ("latency_ms", 12.5, 20),
    "inventory:node-edit": ("host", "10.0.0.7", "10.0.0.8"),
    "inventory:pool-edit": ("price_per_gpu_hour", 2, 3),
}


def filled(page: Any) -> dict[str, Any]:
    """What a browser would send of the form of a page as it stands."""
    form = page.context["form"]
    values = {field.html_name: field.value() for field in form if not field.field.disabled}
    return {name: getattr(value, "pk", value) for name, value in values.items() if value not in (None, "")}


@pytest.mark.parametrize("name", EDITS)
def test_a_second_tab_does_not_overwrite_without_a_word(world: Any, name: str) -> None:
    field, set_meanwhile, entered = CHANGES[name]
    client, url = world.client("admin"), reverse(name, kwargs=ACCESS[name].args(world))
    page = client.get(url)
    row = page.context["form"].instance
    first = filled(page) | {field: entered}
    type(row).objects.filter(pk=row.pk).update(**{field: set_meanwhile})
    answer = client.post(url, first)
    assert answer.status_code == 422, answer.content
    message = " ".join(answer.context["form"].errors[field])
    assert str(set_meanwhile) in message
    assert str(entered) in message
    row.refresh_from_db()
    assert getattr(row, field) == set_meanwhile
    assert client.post(url, filled(answer)).status_code == 302, "who sends it again means it"
    row.refresh_from_db()
    assert getattr(row, field) == entered


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_that_nobody_overtook_is_saved(world: Any, name: str) -> None:
    field, same, entered = CHANGES[name]
    client, url = world.client("admin"), reverse(name, kwargs=ACCESS[name].args(world))
    first = filled(client.get(url)) | {field: entered}
    assert client.post(url, first).status_code == 302
    assert client.post(url, first).status_code == 302, "what is so already is no conflict"
    assert client.post(url, first | {field: same, "began_from": "no such"}).status_code == 302


def test_a_name_and_a_role_carry_what_they_began_from(world: Any) -> None:
    operator, admin = world.client("operator"), world.client("admin")
    rename = reverse("planning:plan-rename", args=[world.plan.pk])
    operator.post(rename, {"name": "four", "began_from": "three"})
    operator.post(rename, {"name": "five", "began_from": "three"})
    world.plan.refresh_from_db()
    assert world.plan.name == "four"
    page = operator.get(reverse("planning:plan-detail", args=[world.plan.pk])).content.decode()
    assert "Somebody changed this to four. You entered five." in page
    member = world.users["viewer"].memberships.get()
    role = reverse("accounts:member-role", args=[member.pk])
    admin.post(role, {"role": "operator", "began_from": "viewer"})
    admin.post(role, {"role": "tenant", "began_from": "viewer"})
    member.refresh_from_db()
    assert member.role == Role.OPERATOR
