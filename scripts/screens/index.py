"""The folder of pictures: none of pages that are gone, and the table of all in its README."""

import re
from pathlib import Path

from scripts.screens.camera import THEMES, WIDTHS, file_name
from scripts.screens.sites import STATES

START, END = "<!-- pages: written by scripts/screens -->", "<!-- end of pages -->"
# Pages that look the same on every site: their pictures are taken on the full one alone.
FORMS = re.compile(
    r"-(create|edit|delete|drain|revoke|clone|waiting|suggestion)$"
)  # the demo's look like the full ones
SAME_EVERYWHERE = re.compile(
    r"login|accounts[:-](password-|me-|invitation-accept|team-create)|inventory[:-](gputype|region-list)"
)


def is_elsewhere(name: str, state: str) -> bool:
    """Whether the page `name` of `state` looks as on the full site, where it is taken."""
    if state == "demo" and FORMS.search(name):
        return True
    return state in ("empty", "demo") and bool(SAME_EVERYWHERE.match(name))


def tidy(out: Path, state: str, wanted: set[str]) -> None:
    """Remove pictures of `state` that no page has any more."""
    for picture in (out / state).glob("*.webp"):
        if picture.name not in wanted:
            picture.unlink()


def write_index(out: Path) -> None:
    """The tables of all pictures, between the marks of the README."""
    readme = out / "README.md"
    text = readme.read_text() if readme.exists() else f"# Pictures of every page\n\n{START}\n{END}\n"
    pages, cases = [state for state in STATES if state != "cases"], ["cases"]
    tables = "\n\n".join([_table(out, pages, "page"), _table(out, cases, "situation")])
    before, _, rest = text.partition(START)
    readme.write_text(before + START + "\n" + tables + "\n" + END + rest.partition(END)[2])


def _table(out: Path, states: list[str], head: str) -> str:
    names = sorted(
        {re.sub(r"-\d+-\w+\.webp$", "", p.name) for state in states for p in (out / state).glob("*.webp")}
    )
    rows = [f"| {head} | " + " | ".join(states) + " |", "| --- " * (len(states) + 1) + "|"]
    rows += [
        f"| {name} | " + " | ".join(_links(out, state, name) for state in states) + " |" for name in names
    ]
    return "\n".join(rows)


def _links(out: Path, state: str, name: str) -> str:
    state = "full" if is_elsewhere(name, state) else state
    files = {
        (width, theme): f"{state}/{file_name(name, width, theme)}" for width in WIDTHS for theme in THEMES
    }
    links = [f"[{width} {theme}]({file})" for (width, theme), file in files.items() if (out / file).exists()]
    return " · ".join(links) or "–"
