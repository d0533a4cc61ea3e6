"""How often one address or name may fail: counters in Valkey that all processes of the site share."""

import contextlib
import hashlib
import ipaddress
from dataclasses import dataclass

import redis

from webapp.common import broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Throttle:
    """At most `most` failures of one in `seconds`, counted from the first.

    Without the broker nothing is counted and nobody is refused: what it protects has a proof of its own.
    """

    name: str
    most: int
    seconds: int

    def count(self, who: str) -> float:
        """Count one failure of `who`; returns how long they must wait now, seconds, 0 where they need not."""
        return self._wait(who, 1)

    def wait(self, who: str) -> float:
        """How long `who` must wait; nothing is counted."""
        return self._wait(who, 0)

    def forget(self, who: str) -> None:
        """`who` begins anew."""
        with contextlib.suppress(redis.RedisError, OSError):
            broker.client().delete(self._key(who))

    def _wait(self, who: str, failures: int) -> float:
        """Refused is whoever has failed `most` times: the next try is one too many."""
        try:
            with broker.client().pipeline(transaction=True) as pipe:
                pipe.set(self._key(who), 0, ex=self.seconds, nx=True)
                pipe.incrby(self._key(who), failures)
                pipe.pttl(self._key(who))
                _, used, left_ms = pipe.execute()
        except (redis.RedisError, OSError):
            broker.health(max_age_s=0)
            return 0.0
        return max(1.0, left_ms / 1e3) if used >= self.most else 0.0

    def _key(self, who: str) -> str:
        """Without what was typed: people type passwords into the field of the name."""
        return f"control:throttle:{self.name}:{hashlib.sha256(who.encode()).hexdigest()[:32]}"


def of_address(address: str | None) -> str:
    """Whom an address stands for: one host has all of an IPv6 network of 64 bits."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return address or ""
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))
