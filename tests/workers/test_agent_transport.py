"""How the agent's consumer connects: as its broker's URL says, with nothing kept in the broker."""

import ssl

import pytest

from workers.app import create_app
from workers.config import from_environment
from workers.transport import Channel, Transport


def connection(url: str):
    environment = {
        "MERIDIAN_NODE": "a",
        "MERIDIAN_BROKER_URL": url,
        "MERIDIAN_NODE_GPUS": "1",
        "MERIDIAN_NODE_DEVICE": "cpu",
        "MERIDIAN_NODE_HOST": "127.0.0.1",
    }
    return create_app(from_environment(environment)).connection_for_read()


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_a_url_of_tls_is_tls_and_checks_the_certificate(scheme: str) -> None:
    client = connection(f"{scheme}://node-a:pw@broker.example:6379/0")
    assert client.ssl == {"ssl_cert_reqs": ssl.CERT_REQUIRED}
    assert (client.hostname, client.port, client.userid) == ("broker.example", 6379, "node-a")


def test_a_plain_url_is_plain() -> None:
    assert not connection("redis://node-a:pw@127.0.0.1:6379/0").ssl


def test_it_takes_tasks_and_keeps_none() -> None:
    assert connection("redis://node-a:pw@127.0.0.1:6379/0").get_transport_cls() is Transport
    assert not Channel.ack_emulation
    assert not Channel.do_restore
