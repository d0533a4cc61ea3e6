"""Every change of telemetry: what nodes report is taken in, what is old is forgotten."""

from webapp.live.services.intake import Event, take_in
from webapp.live.services.retention import forget_old_spans

__all__ = ["Event", "forget_old_spans", "take_in"]
