"""Which connection takes the next chunk of a message over a real link."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine.transport.handles import Send
from engine.transport.outbox import Outbox, Outgoing

CONNECTIONS = 6


class _Connection(SimpleNamespace):
    """One whose kernel takes whatever it is given: always idle."""

    def send(self, frame: list[memoryview], filler: int, taken: Any) -> None:
        self.given.append(sum(map(len, frame[1:])) + filler)
        taken()

    def limit_unsent(self, limited: bool) -> None:
        """Nothing to limit."""


def _outbox() -> tuple[Outbox, list[_Connection]]:
    loop: Any = SimpleNamespace(call=lambda _: None, at=lambda *_: None)
    outbox = Outbox(loop, None, lanes=CONNECTIONS)
    connections = [
        _Connection(index=i, number=i, idle=True, retiring=False, given=[]) for i in range(CONNECTIONS)
    ]
    for connection in connections:
        outbox.add(connection)  # type: ignore[arg-type]
    return outbox, connections


def _message(nbytes: int) -> Outgoing:
    return Outgoing(
        send=Send(1, (0,), nbytes), channel=0, data=memoryview(bytes(nbytes)), ready=0.0, urgent=False
    )


@pytest.mark.parametrize("nbytes", [400_000, 3_000_000, 9_999_999])
def test_a_message_is_spread_though_one_connection_would_take_it_all(nbytes: int) -> None:
    outbox, connections = _outbox()
    outbox.submit(_message(nbytes))
    given = [sum(connection.given) for connection in connections]
    assert sum(given) == nbytes
    assert max(given) - min(given) <= max(max(connection.given) for connection in connections)


def test_what_has_arrived_counts_no_more_and_a_slow_connection_gets_less() -> None:
    outbox, connections = _outbox()
    slow = connections[2]
    for _ in range(20):
        outbox.submit(_message(600_000))
        for connection in connections:
            if connection is not slow:
                outbox.acknowledge(connection.number, len(connection.given))
    others = [sum(connection.given) for connection in connections if connection is not slow]
    assert sum(slow.given) < min(others) / 5
