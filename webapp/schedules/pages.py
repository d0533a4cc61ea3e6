"""Where comparisons of schedules, and sweeps, stand: how they are found, archived, deleted and stopped."""

from webapp.computations.models import ComputationKind
from webapp.computations.pages import ComputationPages

pages = ComputationPages(
    kinds=(ComputationKind.SCHEDULES, ComputationKind.SWEEP),
    one="comparison",
    several="comparisons",
    address="schedules:schedule",
    label="Comparisons of schedules",
    order=55,
)
