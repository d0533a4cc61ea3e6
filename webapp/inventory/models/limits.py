"""What names and numbers of the inventory may be."""

from functools import cache
from zoneinfo import available_timezones

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, RegexValidator

from engine.cluster.gpus import catalogue
from engine.cluster.regions import countries
from engine.control import addresses
from engine.inputs import nearest

# Node names become broker users, key prefixes and queue names: letters that mean nothing there.
NAME_PATTERN = r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?"
NAME = RegexValidator(
    rf"\A{NAME_PATTERN}\Z",
    "Lower-case letters, digits and inner hyphens, at most 40 characters, as in us-east-1.",
)
FINITE = MaxValueValidator(1e9)


@cache
def time_zones() -> tuple[str, ...]:
    """Names of the IANA time zones that this machine knows, in order; only those of a place, and UTC."""
    areas = {
        "Africa",
        "America",
        "Antarctica",
        "Asia",
        "Atlantic",
        "Australia",
        "Europe",
        "Indian",
        "Pacific",
    }
    return ("UTC", *sorted(zone for zone in available_timezones() if zone.partition("/")[0] in areas))


def known_time_zone(value: str) -> None:
    """Refuse what is no IANA time zone."""
    if value not in time_zones():
        raise ValidationError(f"{value} is not an IANA time zone of a location, such as Europe/Stockholm.")


def known_country(value: str) -> None:
    """Refuse what is no ISO 3166-1 alpha-2 code."""
    if value not in countries():
        raise ValidationError(
            f"{value} is not a country code of two capital letters (ISO 3166-1), such as SE."
        )


def known_address(value: str) -> None:
    """Refuse what is neither an IP address nor a host name."""
    if not addresses.is_address(value):
        raise ValidationError(f"{value[:80]} is no address: it {addresses.ALLOWED}.")


def known_gpu_type(value: str) -> None:
    """Refuse a GPU type that the engine's catalogue lacks."""
    if value not in catalogue():
        raise ValidationError(f"{value} is not a GPU type of the catalogue, {nearest(value, catalogue())}.")
