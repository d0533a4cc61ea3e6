"""What a coordinator did in the last second, as the run's events say it."""

import time
from collections import Counter
from dataclasses import dataclass, field

from engine.job.events.prefill import Prefill


@dataclass(slots=True)
class Counts:
    """Since the last event. missed : delivered past their objective.  prefill_ms : of chunks that ran.

    waited_ms : that training ops were due while a chunk still ran.
    """

    accepted: int = 0
    delivered: int = 0
    missed: int = 0
    prefill_ms: float = 0.0
    waited_ms: float = 0.0
    refused: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    since: float = field(default_factory=time.monotonic)

    def event(
        self, dc: str, *, waiting: int, gpus: int, guard_ms: float, slowdown: float | None, paused: bool
    ) -> Prefill:
        """The event of kind `prefill`; the counts begin at 0 again. guard_ms : the longest of its GPUs."""
        now = time.monotonic()
        event = Prefill(
            dc=dc,
            t=time.time(),
            window_s=round(now - self.since, 3),
            accepted=self.accepted,
            refused=dict(self.refused),
            delivered=self.delivered,
            failed=dict(self.failed),
            missed=self.missed,
            waiting=waiting,
            prefill_ms=round(self.prefill_ms, 3),
            waited_ms=round(self.waited_ms, 3),
            gpus=gpus,
            guard_ms=round(guard_ms, 3),
            slowdown=slowdown,
            paused=paused,
        )
        self.accepted = self.delivered = self.missed = 0
        self.prefill_ms, self.waited_ms, self.since = 0.0, 0.0, now
        self.refused.clear()
        self.failed.clear()
        return event
