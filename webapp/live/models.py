"""Telemetry of runs: raw spans for the last iterations, rollups for good."""

from django.db import models
from django.db.models import Q

from webapp.jobs.models import Run


class SpanBatch(models.Model):
    """The spans of one rank in one iteration, as span codes, times in ms since the run's epoch."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+")
    generation = models.PositiveIntegerField()
    rank = models.PositiveIntegerField()
    iteration = models.PositiveIntegerField()
    start = models.FloatField()  # Unix seconds
    end = models.FloatField()
    spans = models.JSONField()

    class Meta:
        ordering = ["run", "iteration", "rank"]
        constraints = [
            models.UniqueConstraint(fields=["run", "generation", "iteration", "rank"], name="spanbatch_key"),
        ]

    def __str__(self) -> str:
        return f"spans of rank {self.rank}, iteration {self.iteration}, run {self.run_id}"


class IterationStat(models.Model):
    """The rollup of one iteration; each column is filled by the first event that knows it.

    busy_s, sync_s : {rank: seconds} of F, R, B, W and of all-reduce and optimizer.
    traffic : {rank: [[from_dc, to_dc, bytes, start, end]…]} of its WAN transfers, ms since the epoch.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="iterations")
    iteration = models.PositiveIntegerField()
    start = models.FloatField(null=True)  # Unix seconds
    end = models.FloatField(null=True)
    loss = models.FloatField(null=True)
    grad_norm = models.FloatField(null=True)
    learning_rate = models.FloatField(null=True)
    tokens = models.PositiveBigIntegerField(null=True)
    ranks = models.PositiveIntegerField(default=0)  # whose spans are in
    busy_s = models.JSONField(default=dict)
    sync_s = models.JSONField(default=dict)
    traffic = models.JSONField(default=dict)
    utilization = models.FloatField(null=True)

    class Meta:
        ordering = ["run", "iteration"]
        constraints = [
            models.UniqueConstraint(fields=["run", "iteration"], name="iterationstat_key"),
            models.CheckConstraint(
                condition=Q(start__isnull=True) | Q(end__isnull=True) | Q(end__gte=models.F("start")),
                name="iterationstat_end_after_start",
            ),
        ]

    def __str__(self) -> str:
        return f"iteration {self.iteration} of run {self.run_id}"


class Beat(models.Model):
    """That a part of the control plane lives: `at` moves while it works, since `since`."""

    name = models.CharField(max_length=40, unique=True)
    at = models.DateTimeField()
    since = models.DateTimeField()

    def __str__(self) -> str:
        return self.name
