"""One-time secrets are worth what their maker may do when they are used, and nothing once they are void."""

import json
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from engine import __version__
from tests.site.world import make_node
from webapp.accounts.models import Invitation, InvitationState, Membership, Role, User
from webapp.accounts.services import activate, deactivate, invite, make_reset_link, remove_member, set_role
from webapp.inventory import services
from webapp.inventory.models import JoinToken, Node

PASSWORD = "a long enough secret 7"


@pytest.fixture
def apart(world: Any) -> Node:
    """A node that has not joined."""
    return make_node(world.dcs[0], "lonely-7", gpus=2, device="cpu", host="127.0.0.1")


@pytest.fixture
def second(world: Any) -> User:
    """A second admin of the team."""
    user = User.objects.create_user("second", email="second@example.org")
    Membership.objects.create(user=user, team=world.team, role=Role.ADMIN)
    return user


def join(token: str) -> Any:
    body = {"token": token, "version": __version__, "host": "127.0.0.1"}
    return Client().post("/api/v1/nodes/join/", json.dumps(body), content_type="application/json")


def lose_rights(world: Any, user: User, how: str) -> None:
    """Take from `user` the right to invite, to manage accounts and to have machines join."""
    membership = Membership.objects.get(user=user, team=world.team)
    if how == "demoted":
        set_role(user, world.team, Role.VIEWER, actor=None)
    elif how == "removed":
        remove_member(None, membership)
    elif how == "deactivated":
        deactivate(None, user)
    elif how == "demoted past the services":
        Membership.objects.filter(pk=membership.pk).update(role=Role.VIEWER)
    else:
        User.objects.filter(pk=user.pk).update(is_active=False)


LOSSES = ("demoted", "removed", "deactivated", "demoted past the services", "deactivated past the services")


def test_an_operators_unused_token_cannot_take_over_a_node_that_an_admin_enrolled(
    world: Any, apart: Node
) -> None:
    token = services.offer_join(world.users["operator"], apart)
    services.enrol_node(world.users["admin"], apart)
    apart.refresh_from_db()
    before = apart.acl_sha256
    answer = join(token)
    assert answer.status_code == 403
    assert "newer credentials" in answer.json()["reason"]
    apart.refresh_from_db()
    assert apart.acl_sha256 == before
    assert not JoinToken.objects.unused().exists()


def test_a_token_that_outlived_an_enrolment_is_an_operators_no_more(world: Any, apart: Node) -> None:
    """Made while an admin's enrolment was not yet to be seen: what counts is the right at the join."""
    token = services.offer_join(world.users["operator"], apart)
    Node.objects.filter(pk=apart.pk).update(acl_sha256="0" * 64, enrolled_at=timezone.now())
    answer = join(token)
    assert answer.status_code == 403
    assert "operator, who made it, may not" in answer.json()["reason"]


@pytest.mark.parametrize("how", LOSSES)
def test_a_join_token_ends_with_the_right_of_its_maker(
    world: Any, apart: Node, second: User, how: str
) -> None:
    token = services.offer_join(second, apart)
    lose_rights(world, second, how)
    assert join(token).status_code == 403
    apart.refresh_from_db()
    assert not apart.is_enrolled
    page = world.client("admin").get(reverse("inventory:join-list")).content.decode()
    assert "second" not in page, "what opens nothing is not listed as open"


@pytest.mark.parametrize("how", LOSSES)
def test_an_invitation_ends_with_the_right_of_its_maker(world: Any, second: User, how: str) -> None:
    _, token = invite(second, world.team, email="new@example.org", role=Role.ADMIN)
    path = reverse("accounts:invitation-accept", args=[token])
    assert Client().get(path).status_code == 200
    lose_rights(world, second, how)
    assert Client().get(path).status_code == 404
    form = {"username": "mallory", "password1": PASSWORD, "password2": PASSWORD}
    assert Client().post(path, form).status_code == 404
    assert world.client("viewer").post(path).status_code == 404
    assert not User.objects.filter(username="mallory").exists()
    assert Membership.objects.get(user=world.users["viewer"]).role == Role.VIEWER
    if "past" not in how:
        assert Invitation.objects.get().state == InvitationState.REVOKED
        again, _ = invite(world.users["admin"], world.team, email="new@example.org", role=Role.VIEWER)
        assert again.state == InvitationState.OPEN, "the address is free for another invitation"


def test_invitations_stay_revoked_when_their_maker_is_admin_again(world: Any, second: User) -> None:
    _, token = invite(second, world.team, email="new@example.org", role=Role.ADMIN)
    deactivate(None, second)
    activate(None, second)
    assert Client().get(reverse("accounts:invitation-accept", args=[token])).status_code == 404


@pytest.mark.parametrize("how", LOSSES)
def test_a_link_for_a_new_password_ends_with_the_right_of_its_maker(
    world: Any, second: User, how: str
) -> None:
    """Who was an admin yesterday must not take an account over today."""
    victim = world.users["operator"]
    uid, token = make_reset_link(second, victim)
    path = reverse("accounts:password-set", args=[uid, token])
    assert Client().get(path).status_code == 302, "Django moves the token out of the address"
    lose_rights(world, second, how)
    client = Client()
    assert client.get(path).status_code == 200
    form = {"new_password1": PASSWORD, "new_password2": PASSWORD}
    client.post(reverse("accounts:password-set", args=[uid, "set-password"]), form)
    victim.refresh_from_db()
    assert not victim.check_password(PASSWORD)


def test_a_link_for_a_new_password_names_its_maker_in_a_way_that_cannot_be_changed(
    world: Any, second: User
) -> None:
    uid, token = make_reset_link(second, world.users["operator"])
    admin, _, rest = token.rpartition(".")
    set_role(second, world.team, Role.VIEWER, actor=None)
    _, other = make_reset_link(world.users["admin"], world.users["operator"])
    for forged in (rest, f"{other.partition('.')[0]}.{rest}", f"zzzzzzzzzzzzz.{rest}", f".{rest}", admin):
        path = reverse("accounts:password-set", args=[uid, forged])
        assert Client().get(path).status_code == 200, "no link"


def test_a_deactivated_account_gets_no_new_password(world: Any) -> None:
    victim = world.users["operator"]
    uid, token = make_reset_link(world.users["admin"], victim)
    deactivate(None, victim)
    assert Client().get(reverse("accounts:password-set", args=[uid, token])).status_code == 200


def test_open_join_commands_are_listed_and_revoked(world: Any, apart: Node) -> None:
    operator = world.client("operator")
    token = services.offer_join(world.users["operator"], apart)
    row = JoinToken.objects.get()
    listed = operator.get(reverse("inventory:join-list")).content.decode()
    assert "lonely-7" in listed
    assert token not in listed
    revoke = reverse("inventory:join-revoke", args=[row.pk])
    assert revoke in listed
    assert revoke in operator.get(reverse("inventory:node-detail", args=[apart.pk])).content.decode()
    assert "operator made it" in operator.get(revoke).content.decode()
    assert operator.post(revoke).status_code == 302
    assert join(token).status_code == 403
    assert revoke not in operator.get(reverse("inventory:node-detail", args=[apart.pk])).content.decode()
    assert operator.post(revoke).status_code == 404


def test_others_neither_see_nor_revoke_join_commands(world: Any, apart: Node) -> None:
    services.offer_join(world.users["operator"], apart)
    revoke = reverse("inventory:join-revoke", args=[JoinToken.objects.get().pk])
    for person in ("viewer", "stranger", "tenant"):
        assert world.client(person).post(revoke).status_code == 404
        page = world.client(person).get(reverse("inventory:join-list"))
        assert page.status_code != 200 or "lonely-7" not in page.content.decode()
    assert JoinToken.objects.open().exists()
