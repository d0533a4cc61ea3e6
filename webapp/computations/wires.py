"""What joins a computation's row with the engine's search that works at it."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from engine.schedule import Search
from engine.schedule.scenario import Scenario
from webapp.computations import services
from webapp.computations.models import Computation

# How often a search that finds nothing new says that it lives and asks whether it should stop.
BEAT_S = 0.5


@dataclass(slots=True, kw_only=True)
class Wires:
    """Between a computation's row and the engine's search."""

    computation: Computation
    ending: Callable[[], bool]  # true when it is to go back into the queue
    done: int = 0
    of: int = 0
    answer: Any = None
    result: dict[str, Any] = field(default_factory=dict)
    stopped: bool = False
    asked_at: float = 0.0
    saved: int = 0

    def search(self, scenario: Scenario) -> Search:
        """Limits and wires of the search for one policy."""
        self.result = {}
        return Search(
            seconds=scenario.time_limit_s,
            seed=scenario.seed,
            cancelled=self.cancelled,
            report=lambda progress: self.publish(asdict(progress)),
        )

    def cancelled(self) -> bool:
        """Whether to stop: asked for by people, or the worker ends."""
        if time.monotonic() - self.asked_at >= BEAT_S:
            self.beat()
        return self.stopped or self.ending()

    def beat(self) -> None:
        """Write how far we are and learn whether anybody still waits; the answer only where it has grown."""
        self.asked_at = time.monotonic()
        progress = {"done": self.done, "of": self.of, **self.result}
        answer = self.answer if self.done > self.saved else None
        self.saved = self.done
        if not services.note_progress(self.computation, progress, answer):
            self.stopped = True

    def publish(self, result: dict[str, Any]) -> None:
        """What the page may show of the step that goes on; written with the next beat."""
        self.result = result
