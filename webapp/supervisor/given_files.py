"""Settings that hold secrets may be given as the name of a file, as containers are given theirs."""

from collections.abc import Mapping
from pathlib import Path

from engine.errors import InputError

# Each of these may be given as <NAME>_FILE instead.
SECRET = ("DATABASE_URL", "VALKEY_URL", "MERIDIAN_NODE_VALKEY_URL", "MERIDIAN_SECRET_KEY")


def with_files_read(environ: Mapping[str, str]) -> dict[str, str]:
    """Return `environ` with the content of the file that <NAME>_FILE names as <NAME>, for each in SECRET.

    Raises
    ------
    InputError
        The file cannot be read or is empty, or both variables are set. Never holds the content.
    """
    whole = dict(environ)
    for name in SECRET:
        variable = f"{name}_FILE"
        place = whole.pop(variable, "").strip()
        if not place:
            continue
        if whole.get(name):
            raise InputError(variable, place, f"must not be set together with {name}")
        whole[name] = _content(variable, place)
    return whole


def _content(variable: str, place: str) -> str:
    try:
        text = Path(place).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise InputError(variable, place, f"must name a file that can be read ({reason})") from None
    if not text:
        raise InputError(variable, place, "must name a file that is not empty")
    return text
