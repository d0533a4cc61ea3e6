"""Control-plane tasks of prefill."""

from celery import shared_task


@shared_task(name="prefill.upkeep")
def upkeep() -> None:
    """End terms that are over, warn of those that soon will be, mail what people are told."""
    from webapp.prefill.services import end_tenancies, mail_notices, warn_of_ends

    end_tenancies()
    warn_of_ends()
    mail_notices()


@shared_task(name="prefill.settle")
def settle() -> None:
    """Close requests whose web process died, by what prefill coordinators delivered of them."""
    from webapp.prefill.gateway.settling import settle_open_requests

    settle_open_requests()
