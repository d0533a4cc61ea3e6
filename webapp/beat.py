"""Celery's beat, which a clock that is set back does not stop."""

from typing import Any

from celery.beat import PersistentScheduler


class Scheduler(PersistentScheduler):
    """Celery's own, but a task that last ran in the future counts as run now.

    Without this, a clock that is set back by an hour stops all tasks for an hour. A restart does not help:
    Celery keeps on disk when each task last ran.
    """

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        """Send what is due; returns the seconds until the next look."""
        now = self.app.now()
        for entry in self.schedule.values():
            if entry.last_run_at > now:
                entry.last_run_at = now
                self._heap = None  # it is ordered by times of the old clock
        return super().tick(*args, **kwargs)
