"""Every change of plans."""

from webapp.planning.services.plans import (
    ask_for_plan,
    clone_plan,
    create_plan,
    delete_plans,
    keep_plan,
    rename_plan,
)
from webapp.planning.services.work import ask_to_compare, ask_to_refine, keep_refined, start_of_plan

__all__ = [
    "ask_for_plan",
    "ask_to_compare",
    "ask_to_refine",
    "clone_plan",
    "create_plan",
    "delete_plans",
    "keep_plan",
    "keep_refined",
    "rename_plan",
    "start_of_plan",
]
