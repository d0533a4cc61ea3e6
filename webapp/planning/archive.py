"""Archiving and deleting plans, and their labels and notes."""

from collections.abc import Sequence
from typing import Any

from webapp.accounts.archive_pages import ArchivePages
from webapp.accounts.describe_pages import DescribePage
from webapp.common.parts import Part
from webapp.computations.models import Computation, ComputationKind, ComputationQuerySet
from webapp.planning.models import Plan
from webapp.planning.services import delete_plans


def _light() -> Any:
    """Plans with their team, without the large columns."""
    return Plan.objects.select_related("team").defer("result", "training")


def _stays(plans: Sequence[Plan]) -> list[str]:
    of = "it" if len(plans) == 1 else "them"
    return [f"Runs launched from {of} stay, with what they were launched with."]


def _computations(plans: Sequence[Plan]) -> ComputationQuerySet:
    return Computation.objects.filter(of_plan__plan__in=[plan.pk for plan in plans])


pages = ArchivePages(
    kind="plan",
    several="plans",
    address="planning:plan",
    remove=delete_plans,
    stays=_stays,
    rows=_light,
)
describe_page = DescribePage(address="planning:plan", rows=_light)
PARTS = (
    Part(
        of="plan",
        order=10,
        one="placement",
        several="placements",
        rows=lambda plans: _computations(plans).of(ComputationKind.PLACEMENT),
    ),
    Part(
        of="plan",
        order=20,
        one="computation",
        several="computations",
        rows=lambda plans: _computations(plans).exclude(kind=ComputationKind.PLACEMENT),
    ),
)
