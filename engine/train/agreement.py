"""What the ranks of a run let each other know through its rendezvous store."""

import time
from typing import Protocol


class Store(Protocol):
    """The methods used of torch.distributed's stores.

    Not `wait`, which blocks the store for other threads.
    """

    def check(self, keys: list[str], /) -> bool: ...
    def get(self, key: str, /) -> bytes: ...
    def set(self, key: str, value: str, /) -> None: ...


class ForgettingStore(Store, Protocol):
    """A store from which values are taken."""

    def delete_key(self, key: str, /) -> bool: ...


def taken(store: ForgettingStore, key: str, *, poll_s: float) -> bytes:
    """The value of a key, once it is there; it is looked for every `poll_s` seconds, and then forgotten."""
    while not store.check([key]):
        time.sleep(poll_s)
    value = store.get(key)
    store.delete_key(key)
    return value
