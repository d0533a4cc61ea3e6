"""Training jobs and their runs: what should be, and what was last observed of it."""

from __future__ import annotations

import re
from typing import Any

from django.conf import settings
from django.contrib.postgres.indexes import GinIndex, HashIndex
from django.db import models
from django.db.models import Case, F, Q, Value, When
from django.db.models.functions import Coalesce
from django.utils.text import capfirst

from engine.inputs import parse
from engine.job.changed import changed, value_at
from engine.job.checkpoint.manifest import newest_of_run
from engine.job.events.training import RankState as Reported
from engine.job.sections.failures import RecoverySettings
from engine.job.sections.strategy import SWAP
from webapp.accounts.models import ArchivableQuerySet, OfTeamQuerySet, Team
from webapp.common.archived import Archivable
from webapp.common.described import Described
from webapp.common.search import Words
from webapp.computations.models import Computation
from webapp.inventory.models import DataCenter, Node
from webapp.jobs.document_field import DocumentField
from webapp.planning.models import Plan


class Status(models.TextChoices):
    """Where a run stands, as the reconciler moves it on; people see RunState."""

    QUEUED = "queued", "Queued"
    STARTING = "starting", "Starting"
    RUNNING = "running", "Running"
    STOPPING = "stopping", "Stopping"
    SUCCEEDED = "succeeded", "Finished"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Stopped"


TERMINAL = (Status.SUCCEEDED, Status.FAILED, Status.CANCELLED)
# Statuses in which a run holds GPUs.
HOLDING = (Status.STARTING, Status.RUNNING, Status.STOPPING)


class RunState(models.TextChoices):
    """Where a run stands, as people see it everywhere: a queued run that lacks something is waiting."""

    QUEUED = "queued", "Queued"
    WAITING = "waiting", "Waiting"
    STARTING = "starting", "Starting"
    RUNNING = "running", "Running"
    STOPPING = "stopping", "Stopping"
    SUCCEEDED = "succeeded", "Finished"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Stopped"


class Desired(models.TextChoices):
    RUNNING = "running", "Running"
    CANCELLED = "cancelled", "Stopped"


class Priority(models.IntegerChoices):
    """Which of a team's queued runs get GPUs first; of equal ones, the first by `Run.queue_order`."""

    HIGH = 1, "High"
    NORMAL = 0, "Normal"
    LOW = -1, "Low"


class RankStatus(models.TextChoices):
    """What the node last said of a rank; `assigned` until it says anything."""

    ASSIGNED = "assigned", "Assigned"
    STARTING = Reported.STARTING.value, "Starting"
    READY = Reported.READY.value, "Ready"
    RUNNING = Reported.RUNNING.value, "Running"
    FINISHED = Reported.FINISHED.value, "Finished"
    FAILED = Reported.FAILED.value, "Failed"
    STOPPED = Reported.STOPPED.value, "Stopped"
    LEFT = Reported.LEFT.value, "Left"  # a worker of strategy swap: the run goes on without it


# A rank only ever goes forward through these; an event that would take it back is late and ignored.
RANK_ORDER = {status: place for place, status in enumerate(RankStatus)}
RANK_OVER = (RankStatus.FINISHED, RankStatus.FAILED, RankStatus.STOPPED, RankStatus.LEFT)


class Job(models.Model):
    """What is trained: the document of `meridian train`, with a copy of the plan that it came from."""

    team = models.ForeignKey(Team, on_delete=models.PROTECT, related_name="jobs")
    name = models.CharField(max_length=80)
    document = DocumentField()
    plan = models.ForeignKey(Plan, null=True, on_delete=models.SET_NULL, related_name="jobs")
    # {name, request, option}: plans may change and be deleted, what ran may not
    plan_copy = models.JSONField(default=dict)
    # [name of the node, GPU] of each rank of a job that is placed; empty: a run gets what is idle.
    gpu_of_rank = models.JSONField(default=list)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)

    objects = OfTeamQuerySet["Job"].as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [GinIndex(Words("name"), name="job_words")]

    def __str__(self) -> str:
        return self.name

    @property
    def swaps(self) -> bool:
        """Whether each rank is a worker that trains the whole model (strategy swap)."""
        return bool(value_at(self.document, "strategy.kind") == SWAP)

    @property
    def deleted_plan(self) -> str:
        """The name of the plan that it came from, where that is deleted; else empty."""
        return self.plan_copy.get("name", "") if self.plan_id is None and "request" in self.plan_copy else ""


class RunQuerySet(ArchivableQuerySet):
    TEAM = "job__team"

    def open(self) -> RunQuerySet:
        """Runs that have not ended."""
        return self.exclude(status__in=TERMINAL)

    def in_queue(self) -> RunQuerySet:
        """Runs that start as soon as they have their GPUs, in the order in which these are given to them."""
        return self.filter(status=Status.QUEUED, search=None).in_order()

    def in_order(self) -> RunQuerySet:
        """In the order of the queue: by priority, of one priority as operators moved them, else by launch.

        Adds `order`, which counts within one priority.
        """
        order = Coalesce("queue_order", "pk", output_field=models.BigIntegerField())
        return self.annotate(order=order).order_by("-priority", "order")

    def ahead_of(self, run: Run) -> RunQuerySet:
        """Runs of the same team that stand before a queued run in the queue."""
        order = run.pk if run.queue_order is None else run.queue_order
        earlier = Q(priority__gt=run.priority) | Q(priority=run.priority, order__lt=order)
        return self.in_queue().filter(earlier, job__team=run.job.team_id)

    def with_state(self) -> RunQuerySet:
        """Adds `shown_state`, what `Run.state` says of each."""
        waits = When(~Q(waits_for=""), status=Status.QUEUED, then=Value(RunState.WAITING))
        return self.annotate(shown_state=Case(waits, default=F("status"), output_field=models.CharField()))

    def with_models(self) -> RunQuerySet:
        """Adds `trained_model`, `stages`, `planned_model` and `of_plan`: whether it came from a plan."""
        return self.annotate(
            trained_model=F("job__document__model"),
            stages=F("job__document__cell__stages"),
            planned_model=F("job__plan_copy__request__job__model"),
            of_plan=Q(job__plan_copy__has_key="request"),
        )

    def for_lists(self) -> RunQuerySet:
        """Without the large columns."""
        return self.select_related("job", "created_by").defer(
            "predicted", "result", "job__document", "job__plan_copy", "job__gpu_of_rank"
        )


class Run(Archivable, Described):
    """One attempt at a job. `generation` fences: what an older one says is ignored."""

    job = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="runs")
    generation = models.PositiveIntegerField()
    desired_state = models.CharField(max_length=10, choices=Desired.choices, default=Desired.RUNNING)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.QUEUED)
    status_reason = models.CharField(max_length=500, blank=True)
    waits_for = models.CharField(max_length=300, blank=True)
    status_since = models.DateTimeField()
    priority = models.SmallIntegerField(choices=Priority.choices, default=Priority.NORMAL)
    # Where it stands among queued runs of its priority: runs that are swapped swap their numbers, which begin
    # as their ids. Null: its id.
    queue_order = models.BigIntegerField(null=True, editable=False)
    steps = models.PositiveIntegerField()
    iteration = models.IntegerField(default=-1)  # the last one that ended, from 0
    progressed_at = models.DateTimeField(null=True, editable=False)  # when that was heard of
    secret = models.CharField(max_length=64, editable=False)  # ranks know each other by it
    rendezvous_port = models.PositiveIntegerField(null=True)
    # {iteration_ms, utilization, spans: [[rank, code…]]}, as it holds since an iteration: that of the launch
    # until the run re-plans or goes on with fewer GPUs (what held before: PastPrediction).
    predicted = models.JSONField(default=dict)
    predicted_since = models.PositiveIntegerField(default=0)
    result = models.JSONField(null=True)
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.PROTECT, related_name="+"
    )
    created_at = models.DateTimeField(auto_now_add=True)
    epoch = models.FloatField(null=True)  # Unix seconds of the first span: what live data counts from
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    live_seq = models.PositiveBigIntegerField(default=0)  # of the last message to browsers
    mark_seq = models.PositiveBigIntegerField(default=0)  # of the last mark
    marks_told = models.PositiveBigIntegerField(default=0)  # of the last mark that browsers have heard of
    # Given by whoever asked for the run: the same key from the same user is answered with this run.
    idempotency_key = models.CharField(max_length=64, blank=True, editable=False)
    # What it waits for does not go away by itself: somebody has to act.
    needs_action = models.BooleanField(default=False)
    # It is to end after a whole iteration: why, after which (rank 0 says), whether its job is queued again.
    boundary_why = models.CharField(max_length=200, blank=True)
    stop_after = models.PositiveIntegerField(null=True)
    again = models.BooleanField(default=False)
    # Its last checkpoint: after how many steps, and where; and the one that it goes on from itself.
    saved_step = models.PositiveIntegerField(null=True)
    saved_where = models.CharField(max_length=1000, blank=True)
    resumes_step = models.PositiveIntegerField(null=True)
    resumes_from = models.CharField(max_length=1000, blank=True)

    # The machine of its first rank did not return: its job is to go on in a run that names this one.
    moves = models.BooleanField(default=False)
    moved_from = models.ForeignKey("self", null=True, on_delete=models.PROTECT, related_name="+")

    # Since which iteration it goes on with fewer GPUs, the last one last:
    # [{iteration, dcs_of_rank: {rank: [data centre of each stage of its pipeline]}, and where known job: its
    # document, position_of_rank: {rank: [pipeline, stage]}}].
    cuts = models.JSONField(default=list)

    # What looks for its schedule: while it is there the run stays queued.
    search = models.ForeignKey(Computation, null=True, on_delete=models.PROTECT, related_name="+")

    LONGEST_WHERE = 1000
    objects = RunQuerySet.as_manager()

    class Meta:
        ordering = ["-created_at", "-id"]
        indexes = [
            models.Index(fields=["status"]),
            models.Index(fields=["-created_at", "-id"], name="run_newest_first"),
            models.Index(fields=["-finished_at"], name="run_ended_last"),
            models.Index(fields=["id"], condition=Q(moves=True), name="run_to_move"),
            GinIndex(Words("labels", "note"), name="run_words"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "generation"], name="run_generation_unique"),
            models.UniqueConstraint(
                fields=["created_by", "idempotency_key"],
                condition=~Q(idempotency_key=""),
                name="run_asked_once",
            ),
            models.CheckConstraint(condition=Q(status__in=Status.values), name="run_status_known"),
            models.CheckConstraint(condition=Q(desired_state__in=Desired.values), name="run_desired_known"),
            models.CheckConstraint(condition=Q(generation__gte=1), name="run_generation_positive"),
            models.CheckConstraint(condition=Q(priority__in=Priority.values), name="run_priority_known"),
            models.CheckConstraint(
                condition=Q(status__in=TERMINAL, finished_at__isnull=False)
                | (~Q(status__in=TERMINAL) & Q(finished_at__isnull=True)),
                name="run_finished_iff_terminal",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job.name} #{self.generation}"

    @property
    def team(self) -> Team:
        return self.job.team

    @property
    def busy(self) -> str:
        """It has not ended, or its job is about to go on in another run."""
        if not self.is_over:
            return f"{self} is {self.state.label.lower()}. Stop it first."
        return (
            f"{self} is about to continue on other GPUs. Wait until that run is there." if self.moves else ""
        )

    @property
    def is_over(self) -> bool:
        return self.status in TERMINAL

    @property
    def state(self) -> RunState:
        """Where it stands, as people see it."""
        waits = self.status == Status.QUEUED and self.waits_for
        return RunState.WAITING if waits else RunState(self.status)

    @property
    def reason(self) -> str:
        """Why it is in its state, as every page says it: what it waits for, how it will end, what it did."""
        text = self.waits_for or self.ending or self.status_reason
        # A sentence, unless it begins with a name, which stays as it is.
        return capfirst(text) if re.match(r"[a-z]+[ :]", text) else text

    @property
    def ending(self) -> str:
        """Why and after which iteration it is about to end; empty where it is not."""
        if self.is_over or not self.boundary_why:
            return ""
        when = f"iteration {self.stop_ordinal:,}" if self.stop_ordinal else "a complete iteration"
        again = "; the job then starts again elsewhere, from its last checkpoint if there is one"
        return f"{self.boundary_why}: it ends after {when}{again if self.again else ''}."

    @property
    def done(self) -> int:
        """Iterations that have ended."""
        return self.iteration + 1

    @property
    def document(self) -> dict[str, Any]:
        """What its ranks are given: the job's document, and the checkpoint that this attempt goes on from.

        One that takes the place of a run saves into a folder of its own: a machine that is cut off and not
        dead may still write into the old one.
        """
        changes: dict[str, Any] = {}
        if self.resumes_from:
            changes["persistence.resume"] = newest_of_run(self.resumes_from)
        saves = value_at(self.job.document, "persistence.checkpoint")
        if self.moved_from_id and saves:
            own = f"{str(saves['dir']).rstrip('/')}/run-{self.pk}"
            changes["persistence.checkpoint"] = {**saves, "dir": own}
        return changed(self.job.document, changes)

    @property
    def recovery(self) -> RecoverySettings | None:
        """How it goes on after a failure, where its job says that it does."""
        settings_of_job = value_at(self.job.document, "failures.recovery")
        return (
            None
            if settings_of_job is None
            else parse(RecoverySettings, settings_of_job, at="failures.recovery")
        )

    @property
    def stop_ordinal(self) -> int | None:
        """The iteration after which it ends, as people count: from 1."""
        return None if self.stop_after is None else self.stop_after + 1

    @property
    def can_cancel(self) -> bool:
        return not self.is_over and self.desired_state == Desired.RUNNING


def lane_of(rank: int, job: Job) -> str:
    """A rank as people name it, pipeline and stage from 1: P2 S3; a worker that swaps: Worker 2.

    Where several ranks compute a stage (tensor parallelism), the second one is P2 S3 T2.
    """
    if job.swaps:
        return f"Worker {rank + 1}"
    cell = job.document["cell"]
    stages, pipelines = cell["stages"], cell.get("pipelines", 1)
    # Ranks beyond the lanes of a run without tensor parallelism are in reserve.
    shard, lane = divmod(rank, stages * pipelines) if cell.get("tp", 1) > 1 else (0, rank)
    name = f"P{lane // stages + 1} S{lane % stages + 1}"
    return f"{name} T{shard + 1}" if shard else name


class RankState(models.Model):
    """One rank of a run: where it is to run, and what its node last said of it."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="ranks")
    rank = models.PositiveIntegerField()
    pipeline = models.PositiveIntegerField()
    stage = models.PositiveIntegerField()
    dc = models.ForeignKey(DataCenter, on_delete=models.PROTECT, related_name="+")
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="ranks")
    gpu = models.PositiveIntegerField()
    state = models.CharField(max_length=10, choices=RankStatus.choices, default=RankStatus.ASSIGNED)
    state_since = models.DateTimeField()
    detail = models.CharField(max_length=500, blank=True)
    exit_code = models.IntegerField(null=True)
    pid = models.PositiveIntegerField(null=True)
    last_line = models.CharField(max_length=500, blank=True)  # of its log
    dispatched_at = models.DateTimeField(null=True)
    dispatches = models.PositiveIntegerField(default=0)
    start = models.PositiveIntegerField(default=1)  # of its machine's ranks: a lost one is started again

    class Meta:
        ordering = ["run", "rank"]
        constraints = [
            models.UniqueConstraint(fields=["run", "rank"], name="rankstate_rank_unique"),
            models.UniqueConstraint(fields=["run", "node", "gpu"], name="rankstate_gpu_unique"),
            models.CheckConstraint(condition=Q(state__in=RankStatus.values), name="rankstate_state_known"),
        ]

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.run_id}"

    @property
    def lane(self) -> str:
        """The rank as people name it: P2 S3."""
        return lane_of(self.rank, self.run.job)


class PastPrediction(models.Model):
    """What was predicted of an iteration of a run since iteration `since`, until something else held.

    spans : as in Run.predicted; empty once the spans of those iterations are forgotten.
    """

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="+")
    since = models.PositiveIntegerField()
    iteration_ms = models.FloatField()
    utilization = models.FloatField(null=True)
    spans = models.JSONField(default=list)

    class Meta:
        ordering = ["run", "since"]
        constraints = [models.UniqueConstraint(fields=["run", "since"], name="pastprediction_key")]

    def __str__(self) -> str:
        return f"{self.iteration_ms} ms since iteration {self.since} of run {self.run_id}"


class CheckpointStatus(models.TextChoices):
    """What is known of a checkpoint; only one that is saved can be resumed from."""

    SAVED = "saved", "Saved"
    FAILED = "failed", "Not saved"
    TORN = "torn", "Torn"
    REMOVED = "removed", "Removed"


class RunCheckpoint(models.Model):
    """A checkpoint that a run saved, or failed to save, as its ranks reported it."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="checkpoints")
    step = models.PositiveIntegerField()  # iterations done
    status = models.CharField(max_length=7, choices=CheckpointStatus.choices)
    where = models.CharField(max_length=Run.LONGEST_WHERE)
    size = models.PositiveBigIntegerField(null=True)  # bytes
    took_s = models.FloatField(null=True)  # to write the last part, in the background
    detail = models.CharField(max_length=500, blank=True)
    at = models.DateTimeField()

    class Meta:
        ordering = ["run", "-step", "-id"]
        # A run that removes older checkpoints names them by their place alone. B-trees hold no text so long.
        indexes = [
            HashIndex(fields=["where"], name="runcheckpoint_where"),
            models.Index(fields=["run", "-step"], name="runcheckpoint_of_run"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(status__in=CheckpointStatus.values), name="runcheckpoint_status_known"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.where} of run {self.run_id}"

    @property
    def state(self) -> CheckpointStatus:
        """What is known of it, with the word that people read."""
        return CheckpointStatus(self.status)


class MarkLevel(models.TextChoices):
    INFO = "info", "Info"
    WARN = "warn", "Warning"
    ERROR = "error", "Error"


class RunEvent(models.Model):
    """Something worth telling that happened to a run; shown as a mark on its page."""

    run = models.ForeignKey(Run, on_delete=models.CASCADE, related_name="events")
    seq = models.PositiveBigIntegerField()
    at = models.DateTimeField()
    level = models.CharField(max_length=5, choices=MarkLevel.choices)
    text = models.CharField(max_length=600)
    # Of an incident, what it cost (webapp/jobs/incidents.py); else empty.
    cost = models.JSONField(default=dict)

    class Meta:
        ordering = ["run", "seq"]
        constraints = [
            models.UniqueConstraint(fields=["run", "seq"], name="runevent_seq_unique"),
            models.CheckConstraint(condition=Q(level__in=MarkLevel.values), name="runevent_level_known"),
        ]

    def __str__(self) -> str:
        return self.text
