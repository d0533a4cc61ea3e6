"""What is done from the point of view of a stream, a host thread or an event, and at which virtual second."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Op:
    """Op or copy number `number` (from 1) of a stream, which a host thread with the clock `host` queued."""

    stream: int
    number: int
    label: str
    host: "Clock"


@dataclass(slots=True)
class Clock:
    """How many ops of each stream are done before what comes next here; the virtual time in seconds."""

    done: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0

    def join(self, other: "Clock") -> None:
        """Wait for all that `other` has waited for."""
        for stream, number in list(other.done.items()):
            if number > self.done.get(stream, 0):
                self.done[stream] = number
        self.seconds = max(self.seconds, other.seconds)

    def copy(self) -> "Clock":
        return Clock(dict(self.done), self.seconds)

    def knows(self, op: Op) -> bool:
        """Whether `op` is done before whatever comes next here."""
        return self.done.get(op.stream, 0) >= op.number
