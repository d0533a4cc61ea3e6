"""Every change of a job or run: what people decide, and what nodes report. One transaction each."""

from webapp.jobs.services.boundary import fail_run, forget_stopped_work, record_boundary, stop_at_boundary
from webapp.jobs.services.checkpoints import record_checkpoint
from webapp.jobs.services.deleting import delete_runs, goes_on_from
from webapp.jobs.services.launch import (
    clone_run,
    launch_placement,
    launch_plan,
    launch_replicas,
    launch_run,
    launch_swap,
    move_run,
    retry_run,
)
from webapp.jobs.services.predictions import forget_old_predictions
from webapp.jobs.services.priority import move_in_queue, set_priority
from webapp.jobs.services.rank_words import is_cause, place, rank_failure
from webapp.jobs.services.ranks import (
    next_live_seq,
    record_dispatch,
    record_ended_iteration,
    record_last_line,
    record_progress,
    record_rank_event,
    record_result,
    release_rank,
)
from webapp.jobs.services.recovery import (
    bring_back,
    fail_or_move,
    leave_reserve,
    record_adapted,
    record_layout_changed,
    record_recovery,
    settle_move,
)
from webapp.jobs.services.searched import record_schedule
from webapp.jobs.services.status import (
    Waiting,
    add_mark,
    cancel_run,
    finish_stopped,
    lock,
    set_status,
    wait_for,
    wait_in_queue,
)
from webapp.jobs.services.workers import end_without_workers, lose_worker, record_workers

__all__ = [
    "Waiting",
    "add_mark",
    "bring_back",
    "cancel_run",
    "clone_run",
    "delete_runs",
    "end_without_workers",
    "fail_or_move",
    "fail_run",
    "finish_stopped",
    "forget_old_predictions",
    "forget_stopped_work",
    "goes_on_from",
    "is_cause",
    "launch_placement",
    "launch_plan",
    "launch_replicas",
    "launch_run",
    "launch_swap",
    "leave_reserve",
    "lock",
    "lose_worker",
    "move_in_queue",
    "move_run",
    "next_live_seq",
    "place",
    "rank_failure",
    "record_adapted",
    "record_boundary",
    "record_checkpoint",
    "record_dispatch",
    "record_ended_iteration",
    "record_last_line",
    "record_layout_changed",
    "record_progress",
    "record_rank_event",
    "record_recovery",
    "record_result",
    "record_schedule",
    "record_workers",
    "release_rank",
    "retry_run",
    "set_priority",
    "set_status",
    "settle_move",
    "stop_at_boundary",
    "wait_for",
    "wait_in_queue",
]
