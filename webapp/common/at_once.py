"""How much one address, person or tenancy has open at the same time in this process."""

import threading
from collections import Counter
from collections.abc import Callable, Hashable


class AtOnce:
    """Counts what is open. Use: `close = counter.open(who, most)`, and `close()` at the end."""

    def __init__(self) -> None:
        self._open: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def open(self, who: Hashable, most: float, size: int = 1) -> Callable[[], None] | None:
        """Count `size` more of `who`; None, and nothing is counted, where they would be more than `most`.

        What it returns takes them away again; called a second time it does nothing.
        """
        with self._lock:
            if self._open[who] + size > most:
                return None
            self._open[who] += size
        left = [size]

        def close() -> None:
            with self._lock:
                if left:
                    self._open[who] -= left.pop()
                    if self._open[who] <= 0:
                        del self._open[who]

        return close

    def __len__(self) -> int:
        """How many have something open."""
        return len(self._open)
