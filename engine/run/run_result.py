"""The result of a pipeline run, on the machine of the first rank, which reports it."""

from typing import Any

from engine.job.events.base import BaseEvent
from engine.job.events.training import Result
from engine.job.result import completed
from engine.run.local_ranks import emit
from engine.run.part import GroupStart, HostPart
from engine.run.rank_processes import RankProcesses


class RunResult(HostPart):
    """Keeps what the first rank reports until all ranks have ended well.

    Attributes
    ----------
    added : further fields of the result.
    """

    def __init__(self, ranks: RankProcesses) -> None:
        self._ranks = ranks
        self._group: GroupStart | None = None
        self._reported: dict[str, Any] | None = None
        self.added: dict[str, Any] = {}

    @property
    def complete(self) -> bool:
        """Whether the first rank has reported and all ranks here have ended well."""
        return self._reported is not None and self._ranks.all_gone() and self._ranks.all_well()

    def on_start(self, group: GroupStart) -> None:
        """What earlier ranks reported is void."""
        self._group, self._reported = group, None

    def takes_event(self, event: BaseEvent) -> bool:
        """Keep the first rank's report."""
        if not isinstance(event, Result):
            return False
        self._reported = event.outcome
        return True

    def close(self) -> None:
        """Say the result, if there is one, with the simulator's side of it."""
        group = self._group
        if self._reported is None or group is None or not self._ranks.all_well():
            return
        assert group.schedule is not None
        result = completed(group.spec.job, group.schedule, self._reported, taken=group.spec.times)
        emit(Result(**{**result, **self.added}))
