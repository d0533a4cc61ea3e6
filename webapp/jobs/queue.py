"""One look through the queue: what can start starts, and the others say what they wait for.

Runs whose schedule is still searched for are not looked at: they say so themselves.

Runs are looked at by priority, those of one priority in the order of their launch. One that lacks GPUs keeps
none back: a later one that fits starts before it, whatever its priority.

The look costs the same number of queries however many runs wait; only a run that starts costs its own.
"""

from collections import Counter

from webapp.jobs import services
from webapp.jobs.allocate import allocate
from webapp.jobs.gpu_inventory import GpuInventory
from webapp.jobs.models import Run


class Queue:
    """The runs that are queued, in the order of the queue, and the GPUs that they ask for.

    Attributes
    ----------
    runs : to be handed to `advance` one by one, then `tell`.
    """

    def __init__(self) -> None:
        queued = Run.objects.in_queue().select_related("job__team")
        self.runs = list(queued.defer("predicted", "result", "job__plan_copy"))
        self._left: Counter[int] = Counter()  # runs that stay queued, by team
        self._news: list[services.Waiting] = []
        self._gpu_inventory = self._look() if self.runs else None

    def advance(self, run: Run) -> None:
        """Start `run` if its GPUs are idle, fail it if they will never be, else note what it waits for."""
        team = run.job.team_id
        assert self._gpu_inventory
        shortage = self._gpu_inventory.shortage(team, run.job.document, run.job.gpu_of_rank)
        if shortage is None:
            started = allocate(run)
            self._gpu_inventory = self._look()  # as it is now
            self._left[team] += not started
        elif shortage.for_good:
            services.fail_run(run, f"{shortage.text}.")
        else:
            text = shortage.said(self._left[team])
            self._news.append(services.Waiting(run=run, what=text, needs_action=shortage.needs_action))
            self._left[team] += 1

    def tell(self) -> None:
        """Write down what is news of what runs wait for."""
        services.wait_in_queue(self._news)

    def _look(self) -> GpuInventory:
        return GpuInventory((run.job.team_id, run.job.document) for run in self.runs)
