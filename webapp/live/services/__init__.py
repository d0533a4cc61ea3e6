"""Every change of telemetry: what nodes report is taken in, what is old is forgotten or kept."""

from webapp.live.services.coordinators import add_up_prefill
from webapp.live.services.intake import take_in
from webapp.live.services.logs import forget_old_lines
from webapp.live.services.ranges import NotKept, delete_range, keep_range
from webapp.live.services.refusals import add_refusal, record_refusals
from webapp.live.services.retention import compact_iterations, forget_old_spans

__all__ = [
    "NotKept",
    "add_refusal",
    "add_up_prefill",
    "compact_iterations",
    "delete_range",
    "forget_old_lines",
    "forget_old_spans",
    "keep_range",
    "record_refusals",
    "take_in",
]
