"""Where traces stand: how they are found, archived and deleted, and what is deleted with them."""

from webapp.common.parts import Part
from webapp.computations.models import ComputationKind
from webapp.computations.pages import ComputationPages
from webapp.traces.models import TraceFile, TraceWhatIf
from webapp.traces.services import delete_traces

KIND = "trace"
pages = ComputationPages(
    kinds=(ComputationKind.TRACE,),
    one=KIND,
    several="traces",
    address="traces:trace",
    label="Traces",
    order=57,
    remove=delete_traces,
)
PARTS = (
    Part(
        of=KIND,
        order=10,
        one="uploaded file",
        several="uploaded files",
        rows=lambda things: TraceFile.objects.filter(trace__in=[thing.pk for thing in things]),
    ),
    Part(
        of=KIND,
        order=20,
        one="what-if request",
        several="what-if requests",
        rows=lambda things: TraceWhatIf.objects.filter(trace__in=[thing.pk for thing in things]),
    ),
)
