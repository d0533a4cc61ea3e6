"""The end of a run: who has said that it leaves needs no answer any more."""

import socket
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from engine.control.errors import ChannelLost
from engine.control.handshake import Identity
from engine.control.rendezvous import Add, Answer, StoreClient, StoreServer
from engine.run.outcome import leave_last
from engine.train.store import RunStore

ME = Identity(rank=0, run="run", generation=1, secret=b"s" * 32)


class EndsWhenAllLeft(StoreServer):
    """The first rank's process may end as soon as the last one has been counted."""

    def _answer(self, request: Any, connected: socket.socket) -> Answer:
        answer = super()._answer(request, connected)
        if isinstance(request, Add) and request.amount:
            raise ChannelLost("the process ended")
        return answer


@pytest.mark.parametrize("kind", [StoreServer, EndsWhenAllLeft])
def test_a_rank_that_leaves_may_get_no_answer(kind: type[StoreServer]) -> None:
    server = kind(socket.create_server(("127.0.0.1", 0)), ME)
    try:
        first, other = (
            StoreClient(("127.0.0.1", server.port), replace(ME, rank=rank), peer=0) for rank in range(2)
        )
        leave_last(_ground(other, is_first=False))
        leave_last(_ground(first, is_first=True))
        assert first.add("left", 0) == 1
    finally:
        server.close()


def _ground(client: StoreClient, *, is_first: bool) -> Any:
    mesh = SimpleNamespace(store=RunStore(client))
    return SimpleNamespace(mesh=mesh, is_first=is_first, spec=SimpleNamespace(ranks=range(2)))
