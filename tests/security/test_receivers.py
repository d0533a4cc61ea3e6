"""Where a request may have a KV cache sent: nowhere, until the site's administrator says so."""

import ipaddress
from typing import Any

import pytest

from engine.errors import InputError
from webapp.prefill.gateway.receivers import require_allowed

ALL = ("0.0.0.0/0", "::/0")
INSIDE = ("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0")
INSIDE_6 = ("::1", "fe80::1", "fd00::1", "::", "::ffff:127.0.0.1", "::ffff:169.254.169.254")


def allowed(settings: Any, host: str, *networks: str) -> bool:
    settings.DECODE_NETWORKS = [ipaddress.ip_network(network) for network in networks]
    try:
        require_allowed(host)
    except InputError:
        return False
    return True


@pytest.mark.parametrize("host", ["8.8.8.8", "2001:4860:4860::8888", *INSIDE, *INSIDE_6])
def test_nothing_is_allowed_at_first(host: str) -> None:
    with pytest.raises(InputError, match="MERIDIAN_DECODE_NETWORKS"):
        require_allowed(host)


@pytest.mark.parametrize("host", [*INSIDE, *INSIDE_6, "224.0.0.1", "ff02::1"])
def test_all_the_world_is_not_what_is_behind_the_site(settings: Any, host: str) -> None:
    assert not allowed(settings, host, *ALL)


def test_a_network_that_is_named_is_allowed(settings: Any) -> None:
    assert allowed(settings, "8.8.8.8", *ALL)
    assert allowed(settings, "10.1.2.3", "10.1.0.0/16")
    assert allowed(settings, "127.0.0.1", "127.0.0.0/8")
    assert allowed(settings, "::ffff:10.1.2.3", "10.1.0.0/16"), "the same machine"
    assert not allowed(settings, "10.2.0.1", "10.1.0.0/16")
    assert not allowed(settings, "8.8.4.4", "8.8.8.0/24")
