"""Control-plane tasks of accounts."""

from celery import shared_task


@shared_task(name="accounts.upkeep")
def upkeep() -> None:
    """Forget sessions that have run out."""
    from webapp.accounts.services import forget_expired

    forget_expired()
