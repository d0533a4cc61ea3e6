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
    somebody_waits,
    start,
)
from webapp.planning.services.plans import ask_for_plan, clone_plan, create_plan, keep_plan, rename_plan
from webapp.planning.services.refinements import ask_to_refine, keep_refined

__all__ = [
    "ask_for_plan",
    "ask_to_cancel",
    "ask_to_refine",
    "claim",
    "clone_plan",
    "create_plan",
    "finish",
    "give_up",
    "keep_plan",
    "keep_refined",
    "note_progress",
    "put_back",
    "remove",
    "rename_plan",
    "requeue_lost",
    "say_alive",
    "somebody_waits",
    "start",
]
