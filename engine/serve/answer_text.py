"""The text of an answer as it is sent: nothing of a stop text, nor what may yet become one."""

from collections.abc import Sequence

from engine.serve.tokenizing import Pieces


class AnswerText:
    """Token by token; `stopped` once a stop text came."""

    def __init__(self, pieces: Pieces, stop: Sequence[str]) -> None:
        self._pieces, self._stop = pieces, tuple(text for text in stop if text)
        self._held = ""
        self.stopped = False

    def add(self, token: int, *, last: bool = False) -> str:
        """What may be sent now; with the `last` token all that is left."""
        self._held += self._pieces.add(token)
        ends = [at for at in (self._held.find(text) for text in self._stop) if at >= 0]
        if ends:
            self.stopped = True
            return self._take(min(ends))
        return self._take(len(self._held) if last else len(self._held) - self._possible())

    def rest(self) -> str:
        """What was held back, where no more tokens come."""
        return self._take(len(self._held))

    def _take(self, count: int) -> str:
        sent, self._held = self._held[:count], self._held[count:]
        return sent

    def _possible(self) -> int:
        """Length of the longest end of what is held with which a stop text begins."""
        return max(
            (
                size
                for text in self._stop
                for size in range(1, min(len(text), len(self._held) + 1))
                if self._held.endswith(text[:size])
            ),
            default=0,
        )
