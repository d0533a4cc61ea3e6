"""Addresses at which a machine is reached: IPv4, IPv6 and host names."""

import ipaddress
import re

ALLOWED = "must be a host name, as in node-1.example.org, or an IP address, as in 10.0.3.7 or 2001:db8::7"
LONGEST = 253
_LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?\Z")


def is_address(text: str) -> bool:
    """Whether `text` is an IP address without a zone, or a host name of RFC 1123 §2.1.

    The last part of a host name has a letter, so that 10.0.0.999 is no address of either kind.
    """
    try:
        return "%" not in str(ipaddress.ip_address(text))
    except ValueError:
        labels = text.split(".")
        return len(text) <= LONGEST and not labels[-1].isdecimal() and all(map(_LABEL.match, labels))
