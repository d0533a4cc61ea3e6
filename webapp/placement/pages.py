"""Where placements stand: their pages, how they are found, archived, deleted and stopped."""

from webapp.computations.models import ComputationKind
from webapp.computations.pages import ComputationPages

pages = ComputationPages(
    kinds=(ComputationKind.PLACEMENT,),
    one="placement",
    several="placements",
    address="placement:placement",
    label="Placements",
    order=50,
    stays=lambda things: ["Runs launched from a placement stay, on the GPUs that they had."],
)
