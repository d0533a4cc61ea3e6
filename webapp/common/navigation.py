"""The side bar: each app registers its pages when it starts (`AppConfig.ready`)."""

from collections.abc import Collection
from dataclasses import dataclass

from webapp.common.counts import Rows

# The groups of the side bar: the least order of its entries, and its heading.
GROUPS = ((0, ""), (20, "Train"), (30, "Calculators"), (80, "Prefill"), (120, "Inventory"), (170, "Team"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the side bar.

    order : entries stand by it, from the top; it also says in which of GROUPS.
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

    @property
    def group(self) -> str:
        """The heading of its group; empty: it stands under none."""
        return max(group for group in GROUPS if group[0] <= self.order)[1]


_entries: dict[str, Entry] = {}


def register(*entries: Entry) -> None:
    """Add entries; one that is registered again, by a second start of the apps, takes its own place."""
    for entry in entries:
        _entries[entry.name] = entry


def entries_for(roles: Collection[str]) -> list[Entry]:
    """The entries that somebody with these roles sees, in order."""
    seen = [entry for entry in _entries.values() if set(entry.roles) & set(roles)]
    return sorted(seen, key=lambda entry: entry.order)
