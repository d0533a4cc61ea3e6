"""Every change of plans and computations."""

from webapp.planning.services.computations import (
    ask_to_cancel,
    claim,
    finish,
    give_up,
    note_progress,
    put_back,
    remove,
    requeue_lost,
    say_alive,
    start,
)
from webapp.planning.services.plans import create_plan

__all__ = [
    "ask_to_cancel",
    "claim",
    "create_plan",
    "finish",
    "give_up",
    "note_progress",
    "put_back",
    "remove",
    "requeue_lost",
    "say_alive",
    "start",
]
