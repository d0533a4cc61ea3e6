"""Control-plane tasks of telemetry."""

from celery import shared_task
from django.conf import settings


@shared_task(name="live.retention")
def retention() -> None:
    """Drop details that are older than what is kept.

    These are spans, times by rank, seconds of prefill coordinators, and log lines.
    """
    from webapp.jobs import services as jobs
    from webapp.live import ranges, services

    services.forget_old_spans(settings.KEEP_SPAN_ITERATIONS)
    jobs.forget_old_predictions(settings.KEEP_SPAN_ITERATIONS, ranges.iterations_held())
    services.compact_iterations(settings.KEEP_SPAN_ITERATIONS)
    services.add_up_prefill(settings.KEEP_PREFILL_S)
    services.forget_old_lines(settings.KEEP_LOG_LINES)
