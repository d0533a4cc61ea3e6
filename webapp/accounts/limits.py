"""How many wrong passwords, links and questions for mail one address and one name may have.

axes locks one name from one address. Who tries many names from one address, or one name from many, is held up
here. A name that others try stays open where its owner is logged in: at the addresses of their sessions.
"""

from django.conf import settings

from webapp.accounts.models import LoginSession
from webapp.common.throttle import Throttle, of_address

TEN_MINUTES, HOUR = 600, 3600


def wait_for_login(name: str, address: str | None) -> float:
    """How long no password of `name` from `address` is tried, seconds; 0: it is."""
    wait_s = _by_address().wait(of_address(address))
    if wait_s or not name:
        return wait_s
    wait_s = _by_name().wait(name)
    if wait_s and LoginSession.objects.filter(user__username=name, address=address).exists():
        return 0.0
    return wait_s


def count_wrong_password(name: str, address: str | None) -> None:
    """A wrong password was typed."""
    _by_address().count(of_address(address))
    _by_name().count(name)


def forget_name(name: str) -> None:
    """An admin unlocks an account."""
    _by_name().forget(name)


def wrong_links() -> Throttle:
    """Of addresses: links for invitations and new passwords that open nothing."""
    return Throttle(name="links", most=settings.WRONG_LINKS_PER_ADDRESS, seconds=TEN_MINUTES)


def reset_questions() -> Throttle:
    """Of addresses: questions for a new password by mail."""
    return Throttle(name="resets", most=settings.RESET_MAILS_PER_ADDRESS, seconds=HOUR)


def _by_address() -> Throttle:
    return Throttle(name="address", most=settings.WRONG_PASSWORDS_PER_ADDRESS, seconds=TEN_MINUTES)


def _by_name() -> Throttle:
    return Throttle(name="name", most=settings.WRONG_PASSWORDS_PER_NAME, seconds=TEN_MINUTES)
