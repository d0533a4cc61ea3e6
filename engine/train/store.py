"""The rendezvous store of a run as torch wants it: for gloo, NCCL and the group of tensor parallelism."""

import socket
from collections.abc import Sequence
from datetime import timedelta

from torch.distributed import Store

from engine.control.identity import identity_of
from engine.control.rendezvous import RENDEZVOUS_S, StoreClient, StoreServer
from engine.job.launch import LaunchSpec


class RunStore(Store):
    """A torch store whose keys are at a `StoreServer`; its methods are those of torch's other stores.

    Whoever gives it to torch must keep it: torch holds the C++ half alone. All methods raise PeerLost.
    """

    def __init__(self, client: StoreClient) -> None:
        super().__init__()
        self._client = client

    def set(self, key: str, value: str | bytes) -> None:
        """Write a value."""
        self._client.set(key, value.encode() if isinstance(value, str) else bytes(value))

    def get(self, key: str) -> bytes:
        """The value of a key, once it is there."""
        return self._client.get([key])[0]

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """The values of keys, once all are there."""
        return self._client.get(keys)

    def add(self, key: str, amount: int) -> int:
        """Add to the number that a key has, or to 0; the sum."""
        return self._client.add(key, amount)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all keys are there."""
        return self._client.check(keys)

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Return once all keys are there."""
        self._client.get(keys, RENDEZVOUS_S if timeout is None else timeout.total_seconds())

    def delete_key(self, key: str) -> bool:
        """Forget a key; whether it was there."""
        return self._client.delete(key)

    def close(self) -> None:
        """Leave the store."""
        self._client.close()


def serve_store(spec: LaunchSpec, rank: int, listening: socket.socket, name: str = "store") -> StoreServer:
    """Hold a store of a run in this process, which is of `rank`. `name`: of its kind, for the proof."""
    return StoreServer(listening, identity_of(spec, rank, _kind(spec, name)))


def join_store(
    spec: LaunchSpec, me: int, address: tuple[str, int], *, peer: int, name: str = "store"
) -> RunStore:
    """Join the store that `peer` holds at an address, as rank `me`. Raises PeerLost."""
    return RunStore(StoreClient(address, identity_of(spec, me, _kind(spec, name)), peer=peer))


def _kind(spec: LaunchSpec, name: str) -> str:
    # A rank of an earlier attempt proves nothing to the store of this one.
    return f"{name} of attempt {spec.attempt}"
