"""The documentation: links and anchors resolve, every page is in the navigation; the check sees faults."""

from pathlib import Path

import pytest

from scripts import check_docs


def test_every_relative_link_and_anchor_resolves() -> None:
    assert check_docs.link_faults() == []


def test_every_page_is_in_the_navigation_once() -> None:
    assert check_docs.navigation_faults() == []


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[a](gone.md)", "no such file"),
        ("![a](gone.png)", "no such file"),
        ("[a](other.md#gone)", "no such heading"),
        ("[a](#gone)", "no such heading"),
        ("[a](../outside.py)", "not part of the site"),
    ],
)
def test_a_broken_link_is_found(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "outside.py").touch()
    (tmp_path / "docs/other.md").write_text("# Other\n\n## `A` part, of two: 100 %\n")
    page = tmp_path / "docs/page.md"
    page.write_text("# Page\n\n[b](other.md#a-part-of-two-100)\n\n```\n[c](gone.md)\n```\n")
    assert check_docs.link_faults(tmp_path) == []
    page.write_text(page.read_text() + f"\n{text}\n")
    (message,) = check_docs.link_faults(tmp_path)
    assert message.startswith("docs/page.md:9: ")
    assert fault in message


def test_a_page_outside_the_navigation_is_found(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    for name in ("index.md", "extra.md"):
        (tmp_path / "docs" / name).write_text("# A page\n")
    (tmp_path / "zensical.toml").write_text(
        '[project]\nnav = [{ A = "index.md" }, { B = [{ C = "gone.md" }] }]\n'
    )
    assert check_docs.navigation_faults(tmp_path) == [
        "docs/extra.md: not in the navigation of zensical.toml",
        "zensical.toml: gone.md: there is no such page",
    ]


def test_what_a_built_page_fetches_from_a_network_is_found(tmp_path: Path) -> None:
    page = tmp_path / "index.html"
    page.write_text(
        '<a href="https://example.org">a link is followed by people only</a><script src="a.js"></script>'
    )
    assert check_docs.site_faults(tmp_path) == []
    page.write_text('<link rel="stylesheet" href="https://fonts.example.org/a.css">')
    assert check_docs.site_faults(tmp_path) == ["index.html: fetches https://fonts.example.org/a.css"]
