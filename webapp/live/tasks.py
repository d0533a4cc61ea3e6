"""Control-plane tasks of telemetry."""

from celery import shared_task
from django.conf import settings


@shared_task(name="live.retention")
def retention() -> None:
    """Drop raw spans that are older than the iterations that are kept."""
    from webapp.live.services import forget_old_spans

    forget_old_spans(settings.KEEP_SPAN_ITERATIONS)
