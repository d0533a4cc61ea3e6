"""One node's part in measuring the rate of a WAN link: it listens, or measures and publishes."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from engine.errors import InputError
from engine.job.events.base import Emit
from engine.job.events.node import LinkRate, Rates
from engine.run.link_rates import LinkRates, emulated_link, listen, measure
from engine.transport import LinkShape, TransportError

log = logging.getLogger(__name__)

SECRET_BYTES = 32
MOST_COUNTS, MOST_CONNECTIONS = 8, 64
LONGEST_S = 5.0  # of sending, for each number of connections
LONGEST_PATIENCE_S = 30.0


class LinkMeter:
    """Takes part in one measurement at a time; the task that asks for it returns at once."""

    def __init__(self, *, host: str, publish: Emit) -> None:
        self._host = host
        self._publish = publish
        self._busy = threading.Lock()
        self._seen: deque[str] = deque(maxlen=100)

    def start(
        self,
        trial: str,
        secret: str,
        *,
        port: int,
        peer: Mapping[str, Any] | None,
        counts: Sequence[int],
        emulated: Mapping[str, Any] | None,
        seconds: float,
        patience_s: float,
    ) -> str:
        """Listen on `port`, or measure to `peer` {host, port} where there is one; once for each `trial`.

        The side that measures publishes one `rates` event: {trial, rtt_ms, rates, error}. Returns what is
        being done, for the log.

        Raises
        ------
        InputError
            An argument is out of range.
        """
        if trial in self._seen:
            return "known already"
        self._seen.append(trial)
        shared = _shared(trial, secret, counts, emulated)
        shared["patience_s"] = min(max(1.0, patience_s), LONGEST_PATIENCE_S)
        if peer is None:
            doing = f"listening on {port}"
            act: Callable[..., LinkRates | None] = partial(listen, self._host, port)
        else:
            doing = f"measuring to {peer['host']}:{peer['port']}"
            address = str(peer["host"]), int(peer["port"])
            act = partial(measure, self._host, address=address, seconds=min(max(0.1, seconds), LONGEST_S))
        threading.Thread(
            target=self._take_part, args=(act, peer is not None, shared), name="link-rates", daemon=True
        ).start()
        return doing

    def _take_part(self, act: Callable[..., LinkRates | None], tells: bool, shared: dict[str, Any]) -> None:
        """Do `act` when no other measurement is under way, and publish what it gives if this side `tells`."""
        rates: LinkRates | None = None
        error = ""
        if not self._busy.acquire(timeout=shared["patience_s"]):
            error = "another measurement on this node takes too long"
        else:
            try:
                rates = act(**shared)
            except (TransportError, InputError, TimeoutError, OSError) as failure:
                error = str(failure)
            finally:
                self._busy.release()
        if tells:
            self._publish(_answer(shared["trial"], rates, error))
        elif error:
            log.warning("link %s: %s", shared["trial"], error)  # the other side sees it too, and tells


def _answer(trial: str, link_rates: LinkRates | None, error: str) -> Rates:
    rates = (
        tuple(LinkRate(connections=r.connections, gbps=r.gbps) for r in link_rates.rates)
        if link_rates
        else ()
    )
    return Rates(
        trial=trial, rtt_ms=link_rates.rtt_ms if link_rates else None, rates=rates, error=error, t=time.time()
    )


def _shared(
    trial: str, secret: str, counts: Sequence[int], emulated: Mapping[str, Any] | None
) -> dict[str, Any]:
    if len(str(secret)) != SECRET_BYTES:
        raise InputError("secret", "…", f"must be {SECRET_BYTES} characters")
    numbers = tuple(int(count) for count in counts)
    sound = 0 < len(numbers) <= MOST_COUNTS and list(numbers) == sorted(set(numbers))
    if not sound or not 1 <= numbers[0] <= numbers[-1] <= MOST_CONNECTIONS:
        allowed = f"must ascend, at most {MOST_COUNTS}, 1 to {MOST_CONNECTIONS}"
        raise InputError("counts", list(counts), allowed)
    return {"trial": trial, "secret": str(secret), "counts": numbers, "shape": _shape(emulated)}


def _shape(emulated: Mapping[str, Any] | None) -> LinkShape | None:
    if emulated is None:
        return None
    return emulated_link(
        float(emulated["latency_ms"]), float(emulated["bandwidth_gbps"]), float(emulated["window_bytes"])
    )
