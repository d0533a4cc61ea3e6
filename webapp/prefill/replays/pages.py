"""Where replays stand: how they are found, archived, deleted and stopped, and what is deleted with them."""

from webapp.common.parts import Part
from webapp.computations.models import ComputationKind
from webapp.computations.pages import ComputationPages
from webapp.traces.models import TraceFile

KIND = "replay"
pages = ComputationPages(
    kinds=(ComputationKind.REPLAY,),
    one=KIND,
    several="replays",
    address="prefill:replay",
    label="Replays",
    order=58,
)
PARTS = (
    Part(
        of=KIND,
        order=10,
        one="uploaded trace",
        several="uploaded traces",
        rows=lambda things: TraceFile.objects.filter(trace__in=[thing.pk for thing in things]),
    ),
)
