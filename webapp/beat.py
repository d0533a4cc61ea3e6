"""Celery's beat, which a clock that is set back does not stop."""

from typing import Any

from celery.beat import PersistentScheduler


class Scheduler(PersistentScheduler):
    """Celery's own, but nothing waits for a time at which it ran "later" than now.

    After a step of the clock by an hour back Celery sends nothing for an hour, as each task last ran in the
    future; what it keeps on disk has such times after a restart, too.
    """

    def tick(self, *args: Any, **kwargs: Any) -> Any:
        """Send what is due; returns the seconds until the next look."""
        now = self.app.now()
        for entry in self.schedule.values():
            if entry.last_run_at > now:
                entry.last_run_at = now
                self._heap = None  # it is ordered by times of the old clock
        return super().tick(*args, **kwargs)
