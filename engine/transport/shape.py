"""A link between two nodes: its peer, its address and, if emulated, its figures."""

import math
from dataclasses import dataclass, replace
from typing import Literal

from engine.errors import InputError

MOST_CONNECTIONS = 256
PACE_SHARE = 0.98
Address = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkShape:
    """Figures of an emulated link, for one direction.

    one_way_delay_s : propagation, in seconds.
    cap_bytes_per_s : most bytes per second between the two nodes; None for no cap.
    window_bytes : window of one TCP connection: its rate is window / RTT (Atlas Table 1); None: no limit.
    connections : how many TCP connections, or auto: as many as the cap needs.
    """

    one_way_delay_s: float
    cap_bytes_per_s: float | None = None
    window_bytes: float | None = None
    connections: int | Literal["auto"] = "auto"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.one_way_delay_s) and self.one_way_delay_s >= 0):
            raise InputError("one_way_delay_s", self.one_way_delay_s, "must be finite and at least 0")
        for field in ("cap_bytes_per_s", "window_bytes"):
            value = getattr(self, field)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise InputError(field, value, "must be finite and greater than 0, or None")
        if self.connections != "auto" and not 1 <= self.connections <= MOST_CONNECTIONS:
            raise InputError("connections", self.connections, f"must be auto or 1 to {MOST_CONNECTIONS}")

    @property
    def connection_bytes_per_s(self) -> float:
        """Rate of one TCP connection, window / RTT; infinite without a window or a delay."""
        if self.window_bytes is None or self.one_way_delay_s == 0:
            return math.inf
        return self.window_bytes / (2 * self.one_way_delay_s)

    def slower(self, factor: float, *, delay: float = 1.0) -> "LinkShape":
        """The link with a `factor`-th of its rate, as cap and window give it, and `delay` times its delay.

        With a longer delay a connection carries less, too: a window each round trip.
        """
        cap, window = self.cap_bytes_per_s, self.window_bytes
        return replace(
            self,
            one_way_delay_s=delay * self.one_way_delay_s,
            cap_bytes_per_s=None if cap is None else cap / factor,
            window_bytes=None if window is None else window / factor,
        )

    @property
    def connection_count(self) -> int:
        """Connections that carry data: as asked, or the fewest that reach the cap."""
        if self.connections != "auto":
            return self.connections
        if self.cap_bytes_per_s is None or math.isinf(self.connection_bytes_per_s):
            return 1
        needed = math.ceil(self.cap_bytes_per_s / self.connection_bytes_per_s * (1 - 1e-9))
        return min(max(needed, 1), MOST_CONNECTIONS)

    @property
    def bytes_per_s(self) -> float:
        """Rate of the node pair: min(n · window / RTT, cap); infinite where neither limits."""
        cap = math.inf if self.cap_bytes_per_s is None else self.cap_bytes_per_s
        return min(self.connection_count * self.connection_bytes_per_s, cap)


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """A rank to talk to.

    address : where its endpoint listens.
    shape : figures of the emulated link for what this rank sends; None for a real network.
    connections : data connections over a real network (with a shape, the shape says how many); auto: as many
        as round trip, measured rate and cap ask for, chosen again while it runs (Atlas §4.1).
    cap_bytes_per_s : most that a real network may be given between the two nodes; what is sent stays a little
        below. None: as much as it takes.
    link : name of the link, for errors and figures.
    """

    rank: int
    address: Address
    shape: LinkShape | None = None
    connections: int | Literal["auto"] = 1
    cap_bytes_per_s: float | None = None
    link: str = "the network"

    def __post_init__(self) -> None:
        if self.connections != "auto" and not 1 <= self.connections <= MOST_CONNECTIONS:
            raise InputError("connections", self.connections, f"must be auto or 1 to {MOST_CONNECTIONS}")
        cap = self.cap_bytes_per_s
        if cap is not None and not (math.isfinite(cap) and cap > 0):
            raise InputError("cap_bytes_per_s", cap, "must be finite and greater than 0, or None")

    @property
    def auto(self) -> bool:
        """The number of connections is chosen, and chosen again, from what is measured."""
        return self.shape is None and self.connections == "auto"

    @property
    def connection_count(self) -> int:
        """Connections that carry data between the two nodes; with `auto` those to begin with."""
        if self.shape is not None:
            return self.shape.connection_count
        return 1 if self.connections == "auto" else self.connections

    @property
    def pace_bytes_per_s(self) -> float | None:
        """The most that this rank sends over a real link: slightly below the cap, to avoid a queue."""
        if self.shape is not None or self.cap_bytes_per_s is None:
            return None
        return PACE_SHARE * self.cap_bytes_per_s
