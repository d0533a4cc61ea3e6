"""Every change of telemetry: what nodes report is taken in, what is old is forgotten."""

from webapp.live.services.coordinators import add_up_prefill
from webapp.live.services.intake import take_in
from webapp.live.services.logs import forget_old_lines
from webapp.live.services.retention import compact_iterations, forget_old_spans

__all__ = ["add_up_prefill", "compact_iterations", "forget_old_lines", "forget_old_spans", "take_in"]
