"""What names and numbers of the inventory may be."""

from django.core.validators import MaxValueValidator, RegexValidator

# Node names become broker users, key prefixes and queue names: letters that mean nothing there.
NAME_PATTERN = r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?"
NAME = RegexValidator(
    rf"\A{NAME_PATTERN}\Z",
    "Lower-case letters, digits and inner hyphens, at most 40 characters, as in us-east-1.",
)
FINITE = MaxValueValidator(1e9)
