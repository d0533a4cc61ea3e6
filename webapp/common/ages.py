"""How old a row is, by a clock that may have been set back since it was written."""

from datetime import timedelta

from django.db.models import Q
from django.utils import timezone


def older(field: str, age: timedelta) -> Q:
    """Rows whose time in `field` is at least `age` ago, or as far ahead: a clock was set back since."""
    now = timezone.now()
    return Q(**{f"{field}__lte": now - age}) | Q(**{f"{field}__gt": now + age})
