"""The side bar: each app registers its pages when it starts (`AppConfig.ready`)."""

from collections.abc import Collection
from dataclasses import dataclass

from webapp.common.counts import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the side bar.

    order : entries stand by it, from the top.
    name : by which a page says that it is the one that is open; part of the element's id.
    address : name of the URL.
    roles : who sees it.
    rows : what it counts, of what a user may see; for those who read. See `common.counts`.
    """

    order: int
    name: str
    label: str
    address: str
    roles: Collection[str]
    rows: Rows | None = None


_entries: dict[str, Entry] = {}


def register(*entries: Entry) -> None:
    """Add entries; one that is registered again, by a second start of the apps, takes its own place."""
    for entry in entries:
        _entries[entry.name] = entry


def entries_for(roles: Collection[str]) -> list[Entry]:
    """The entries that somebody with these roles sees, in order."""
    seen = [entry for entry in _entries.values() if set(entry.roles) & set(roles)]
    return sorted(seen, key=lambda entry: entry.order)
