"""Endpoints of ranks that are threads of one process."""

from collections import Counter
from typing import Any

from tests.runtime.cells import Office


class PlayedEndpoint:
    """Bytes between threads under the names that the transport gives them."""

    def __init__(self, office: Office, rank: int) -> None:
        self.rank, self._office = rank, office
        self.sent_bytes: Counter[int] = Counter()

    def send(self, rank: int, tag: tuple[int, ...], data: memoryview) -> "_Done":
        self._office.put((self.rank, rank, tag), bytes(data))
        self.sent_bytes[rank] += len(data)
        return _Done(lambda: None)

    def post_receive(self, rank: int, tag: tuple[int, ...], into: memoryview) -> "_Done":
        def take() -> None:
            into[:] = self._office.take((rank, self.rank, tag))

        return _Done(take)


class _Done:
    def __init__(self, do: Any) -> None:
        self._do = do

    def wait(self, timeout_s: float) -> None:
        self._do()
