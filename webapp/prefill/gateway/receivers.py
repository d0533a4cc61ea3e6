"""Where a request may have its KV cache sent: ranks connect there, so it must not be just anywhere."""

import ipaddress

from django.conf import settings

from engine.errors import InputError

FIELD = "kv_transfer_params.decode.host"


def require_allowed(host: str) -> None:
    """Raise InputError unless the site's administrator allows receivers at the IP address `host`.

    An address that is not of the public internet (private, loopback, link-local) is allowed only by a network
    that is not of it either: who allows all the world has not allowed the machines behind the site.
    """
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    allowed = any(
        address in network and (address.is_global or not network.is_global)
        for network in settings.DECODE_NETWORKS
    )
    if not allowed or address.is_multicast or address.is_unspecified:
        text = "must be in a network that this site's administrator allows (MERIDIAN_DECODE_NETWORKS)"
        raise InputError(FIELD, host, text)
