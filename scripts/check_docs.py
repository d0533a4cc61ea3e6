"""Check the documentation: every relative link and anchor resolves, every page is in the navigation.

    python -m scripts.check_docs            # README.md, CHANGELOG.md and docs/
    python -m scripts.check_docs --site DIR # the built site: nothing in it is fetched from a network

Prints one line a fault; exit status 1 where there is any.
"""

import argparse
import re
import sys
import tomllib
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^ {0,3}(```|~~~)")
HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$")
LINK = re.compile(
    r"!?\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|<img[^>]*src=\"([^\"]+)\""
)
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


def prose(text: str) -> Iterator[tuple[int, str]]:
    """Number and text of each line outside of code, without its inline code."""
    fence, before = "", ""
    for number, line in enumerate(text.splitlines(), 1):
        mark = FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
        elif mark and mark[1] == fence:
            fence = ""
        elif not fence and not (line.startswith("    ") and not before.strip()):
            yield number, line if line.startswith("#") else re.sub(r"`[^`]*`", "", line)
            before = line
        if fence or mark:
            before = line


def slug(heading: str) -> str:
    """The anchor of a heading, as the site's generator makes it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").replace("*", "")
    text = text.encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", text).strip().lower())


def anchors(page: Path) -> set[str]:
    names: set[str] = set()
    for _, line in prose(page.read_text()):
        heading = HEADING.match(line)
        if heading:
            name = base = slug(heading[1])
            number = 0
            while name in names:
                number += 1
                name = f"{base}_{number}"
            names.add(name)
    return names


def link_faults(root: Path = ROOT) -> list[str]:
    """Relative links of the pages that lead nowhere, as `page:line: link: what is wrong`."""
    docs = root / "docs"
    pages = [p for p in (root / "README.md", root / "CHANGELOG.md") if p.exists()] + sorted(
        docs.rglob("*.md")
    )
    names = {page: anchors(page) for page in pages}
    faults = []
    for page in pages:
        for number, line in prose(page.read_text()):
            for match in LINK.finditer(line):
                link = match[1] or match[2]
                if re.match(r"[a-z][a-z0-9+.-]*:", link):
                    continue
                path, _, anchor = unquote(link).partition("#")
                target = (page.parent / path).resolve() if path else page
                where = f"{page.relative_to(root)}:{number}: {link}"
                if not target.exists():
                    faults.append(f"{where}: there is no such file")
                elif page.is_relative_to(docs) and not target.is_relative_to(docs):
                    faults.append(f"{where}: not part of the site; name the file without a link")
                elif anchor and anchor not in names.get(target, set()):
                    faults.append(f"{where}: there is no such heading")
    return faults


def navigation(root: Path = ROOT) -> list[str]:
    """The pages that zensical.toml lists, in its order."""

    def leaves(node: Any) -> Iterator[str]:
        if isinstance(node, str):
            yield node
        else:
            for child in node.values() if isinstance(node, dict) else node:
                yield from leaves(child)

    return list(leaves(tomllib.loads((root / "zensical.toml").read_text())["project"]["nav"]))


def navigation_faults(root: Path = ROOT) -> list[str]:
    """Pages that the navigation lacks, lists twice, or lists though they are not there."""
    listed = navigation(root)
    pages = {page.relative_to(root / "docs").as_posix() for page in (root / "docs").rglob("*.md")}
    return (
        [f"docs/{page}: not in the navigation of zensical.toml" for page in sorted(pages - set(listed))]
        + [f"zensical.toml: {page}: there is no such page" for page in sorted(set(listed) - pages)]
        + [
            f"zensical.toml: {page}: listed twice"
            for page in sorted({p for p in listed if listed.count(p) > 1})
        ]
    )


class _Loads(HTMLParser):
    """What a browser fetches by itself when it shows a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag == "link" and values.get("rel") in ("canonical", "next", "prev"):
            return
        if address := values.get(LOADED.get(tag, "")):
            self.addresses.append(address)


def site_faults(site: Path) -> list[str]:
    """Files that pages or style sheets of the built site would fetch from a network."""
    faults = []
    for page in sorted(site.rglob("*.html")):
        loads = _Loads()
        loads.feed(page.read_text())
        away = [address for address in loads.addresses if re.match(r"(https?:)?//", address)]
        faults += [f"{page.relative_to(site)}: fetches {address}" for address in away]
    for sheet in sorted(site.rglob("*.css")):
        for address in re.findall(r"(?:url\(|@import )['\"]?((?:https?:)?//[^'\")]+)", sheet.read_text()):
            faults.append(f"{sheet.relative_to(site)}: fetches {address}")
    if not (site / "index.html").exists():
        faults.append(f"{site}: there is no index.html")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--site", type=Path, help="check a built site in this folder instead")
    arguments = parser.parse_args()
    faults = site_faults(arguments.site) if arguments.site else link_faults() + navigation_faults()
    sys.stdout.writelines(f"{fault}\n" for fault in faults)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
