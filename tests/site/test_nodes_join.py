"""Joining with a one-time token, and credentials that are taken away."""

import json
from datetime import timedelta
from typing import Any

import hypothesis
import pytest
import redis
from django.conf import settings
from django.core.exceptions import ValidationError
from django.test import Client
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from engine import __version__
from tests.events import event
from tests.site.world import make_node, make_world
from webapp.accounts.models import AuditEntry
from webapp.common import broker
from webapp.inventory import services
from webapp.inventory.models import JoinToken, Node, free_ports
from webapp.inventory.models.node import ports_needed

JOIN = "/api/v1/nodes/join/"


@pytest.fixture(autouse=True)
def _no_throttle() -> None:
    for key in broker.client().scan_iter("control:uses:*"):
        broker.client().delete(key)


def join(token: str, **changes: Any) -> Any:
    body = {"token": token, "version": __version__, "host": "127.0.0.1", **changes}
    return Client().post(JOIN, json.dumps(body), content_type="application/json")


@pytest.fixture
def apart(world: Any) -> Node:
    """A node that has not joined."""
    return make_node(world.dcs[0], "fresh", gpus=2, device="cpu", host="127.0.0.1")


@pytest.mark.usefixtures("db")
def test_a_token_makes_a_machine_a_node_once(world: Any, apart: Node) -> None:
    token = services.offer_join(world.users["operator"], apart)
    assert token not in str(list(JoinToken.objects.values())), "only a hash is kept"
    hardware = {"gpus": [], "cores": 8, "memory_bytes": 2**34, "python": "3.12.1", "torch": "", "extra": "no"}
    answer = join(token, host="127.0.0.2", gpus=3, device="emulated", hardware=hardware)
    assert answer.status_code == 200, answer.content
    body = answer.json()
    apart.refresh_from_db()
    environment = body["environment"]
    assert environment["MERIDIAN_NODE"] == "fresh"
    assert environment["MERIDIAN_NODE_PORTS"] == f"{apart.port_from}-{apart.port_to}"
    assert (apart.host, apart.gpus, apart.device, apart.version) == ("127.0.0.2", 3, "emulated", __version__)
    assert apart.seen_hardware["cores"] == 8
    assert "extra" not in apart.seen_hardware
    with redis.Redis.from_url(environment["MERIDIAN_BROKER_URL"]) as own:
        assert own.xadd("node:fresh:events", {"e": "{}"})
        assert json.loads(own.get("node:fresh:site"))["version"] == __version__
    verbs = list(AuditEntry.objects.filter(object_label="fresh").values_list("verb", flat=True))
    assert {"offer-join", "join", "enrol"} <= set(verbs)
    assert "127.0.0.1" in AuditEntry.objects.get(verb="join").message
    again = join(token)
    assert again.status_code == 403
    assert "was used" in again.json()["reason"]


def test_void_tokens_say_why(world: Any, apart: Node) -> None:
    assert join("mj-nonsense").json()["reason"].startswith("is not known")
    first = services.offer_join(world.users["operator"], apart)
    second = services.offer_join(world.users["operator"], apart)
    assert join(first).status_code == 403, "a newer token voids the older one"
    JoinToken.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    answer = join(second)
    assert answer.status_code == 403
    assert answer.json()["reason"].startswith("expired at")
    apart.refresh_from_db()
    assert not apart.is_enrolled


@pytest.mark.parametrize(
    ("version", "says"), [("0.0.9", "run on the node: pip install"), ("7.2.0", "update the site to 7.2")]
)
def test_another_version_is_refused_with_the_remedy_and_the_token_stays_good(
    world: Any, apart: Node, version: str, says: str
) -> None:
    token = services.offer_join(world.users["operator"], apart)
    answer = join(token, version=version)
    assert answer.status_code == 409
    assert answer.json()["remedy"].startswith(says)
    assert f"meridian[node]=={'.'.join(__version__.split('.')[:2])}.*" in answer.json()["remedy"]
    assert join(token).status_code == 200


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("gpus", {"gpus": 0}),
        ("gpus", {"gpus": "4"}),
        ("device", {"device": "tpu"}),
        ("host", {"host": ""}),
        ("host", {"host": "a b"}),
        ("host", {"host": "10.0.0.999"}),
        ("ports", {"ports": "x"}),
        ("ports", {"ports": "29500-29501"}),
        ("ports", {"ports": "80-500"}),
        ("version", {"version": "new"}),
        ("speed", {"speed": 1}),
    ],
)
def test_bad_values_name_their_field_and_cost_no_token(
    world: Any, apart: Node, field: str, changes: dict[str, Any]
) -> None:
    token = services.offer_join(world.users["operator"], apart)
    answer = join(token, **changes)
    assert answer.status_code in (409, 422)
    assert answer.json()["field"] == field
    assert join(token).status_code == 200


def test_what_is_no_join_request_is_refused(world: Any) -> None:
    for body in (b"", b"{", b"[]", b"null", b"\xff"):
        assert Client().post(JOIN, body, content_type="application/json").status_code == 422, body
    assert Client().get(JOIN).status_code == 405


def test_too_many_tries_are_refused(world: Any) -> None:
    codes = [join("mj-x").status_code for _ in range(25)]
    assert codes[:20] == [403] * 20
    assert set(codes[20:]) == {429}


def test_tries_are_counted_over_all_processes(world: Any) -> None:
    """What another process of the site has answered counts here too, each address by itself, for a minute."""
    assert [broker.uses("join:10.9.9.9", 60) for _ in range(3)] == [1, 2, 3]
    other = redis.Redis.from_url(settings.VALKEY_URL)
    other.incrby("control:uses:join:127.0.0.1", 20)
    assert join("mj-x").status_code == 429
    assert 0 < other.ttl("control:uses:join:10.9.9.9") <= 60
    assert broker.uses("join:10.9.9.8", 60) == 1


def test_nobody_joins_while_the_broker_is_silent(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = redis.Redis.from_url("redis://127.0.0.1:1/0", socket_connect_timeout=0.2)
    monkeypatch.setattr(broker, "client", lambda: dead)
    answer = join("mj-x")
    assert (answer.status_code, answer.json()["field"]) == (503, "broker")


def test_ports_that_another_node_of_the_host_has_are_refused(world: Any, apart: Node) -> None:
    Node.objects.filter(pk=world.nodes[0].pk).update(host="10.1.1.1", port_from=31000, port_to=31099)
    token = services.offer_join(world.users["operator"], apart)
    answer = join(token, host="10.1.1.1", ports="31050-31200")
    assert answer.status_code == 409
    assert "east-1 on the same host already uses 31000 to 31099" in answer.json()["reason"]
    assert join(token, host="10.1.1.1").status_code == 200
    apart.refresh_from_db()
    assert not (apart.port_from <= 31099 and apart.port_to >= 31000)


def test_only_an_admin_may_replace_or_revoke_credentials(world: Any, apart: Node) -> None:
    operator = world.client("operator")
    assert operator.post(f"/nodes/{apart.pk}/join-command/").status_code == 302
    joined = world.nodes[0].pk
    for path in ("join-command", "enrol", "revoke"):
        assert operator.post(f"/nodes/{joined}/{path}/").status_code == 403, path


def test_revoked_credentials_end_at_once_and_replaced_ones_too(world: Any, apart: Node) -> None:
    admin = world.users["admin"]
    environment = services.enrol_node(admin, apart)
    with redis.Redis.from_url(environment["MERIDIAN_BROKER_URL"]) as own:
        own.ping()
        connection = own.connection_pool.get_connection()
        newer = services.enrol_node(admin, apart)
        connection.send_command("PING", check_health=False)
        with pytest.raises((redis.ConnectionError, redis.AuthenticationError)):
            connection.read_response()
        with pytest.raises(redis.AuthenticationError):
            redis.Redis.from_url(environment["MERIDIAN_BROKER_URL"]).ping()
    token = services.offer_join(admin, apart)
    assert world.client("admin").post(f"/nodes/{apart.pk}/revoke/").status_code == 302
    with pytest.raises(redis.AuthenticationError):
        redis.Redis.from_url(newer["MERIDIAN_BROKER_URL"]).ping()
    assert join(token).status_code == 403, "open tokens are void too"
    seen = timezone.now()
    services.record_heartbeat("fresh", seen, event("heartbeat", version=__version__, ranks=[]))
    apart.refresh_from_db()
    assert apart.last_seen is None, "what a revoked node left in its stream is no sign of life"
    assert not redis.Redis.from_url(settings.VALKEY_URL).exists("node:fresh:site")


def test_the_command_is_shown_once_and_the_page_follows(world: Any) -> None:
    client = world.client("operator")
    form = {"name": "new-1", "pool": world.nodes[0].pool_id, "gpus": 2, "device": "cpu", "host": "10.3.3.3"}
    page = client.post("/nodes/new/", form, follow=True)
    assert page.status_code == 200, page.context["form"].errors
    assert page["Cache-Control"] == "no-store"
    command = page.context["command"]
    assert command.startswith("meridian agent join http://testserver --token mj-")
    node = Node.objects.get(name="new-1")
    waiting = client.get(f"/nodes/{node.pk}/waiting/").content.decode()
    assert 'hx-trigger="every 2s"' in waiting
    token = command.split("--token ")[1].split()[0]
    assert token not in waiting
    assert join(token, host="10.3.3.3").status_code == 200
    assert "Joined" in client.get(f"/nodes/{node.pk}/waiting/").content.decode()
    services.record_heartbeat("new-1", timezone.now(), event("heartbeat", version=__version__, ranks=[]))
    done = client.get(f"/nodes/{node.pk}/waiting/").content.decode()
    assert "Online" in done
    assert "hx-trigger" not in done


class PortRanges(TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        cls.dc = make_world().dcs[0]

    @hypothesis.settings(max_examples=20)
    @given(st.lists(st.tuples(st.integers(1, 60), st.sampled_from(["10.0.0.1", "10.0.0.2"])), max_size=12))
    def test_ranges_given_out_never_overlap_and_suffice(self, wanted: list[tuple[int, str]]) -> None:
        taken: dict[str, set[int]] = {}
        for number, (gpus, host) in enumerate(wanted):
            first, last = free_ports(host, gpus)
            ports = set(range(first, last + 1))
            assert len(ports) >= ports_needed(gpus)
            assert not ports & taken.setdefault(host, set())
            taken[host] |= ports
            node = make_node(self.dc, f"n-{number}", gpus=gpus, host=host, port_from=first, port_to=last)
            node.full_clean()
            low, high = node.rank_ports
            assert high - low + 1 >= gpus
            assert len(node.rendezvous_ports) >= gpus
            kinds = [set(range(low, high + 1)), set(node.rendezvous_ports), {node.probe_port}]
            assert sum(map(len, kinds)) == len(set.union(*kinds)), "no port has two uses"
            assert set.union(*kinds) <= ports


def test_a_host_may_run_out_of_ports(world: Any) -> None:
    Node.objects.filter(pk=world.nodes[0].pk).update(host="10.9.9.9", port_from=1024, port_to=65535)
    with pytest.raises(ValidationError, match="no 100 free ports"):
        free_ports("10.9.9.9", 1)
