"""The table of mechanisms (docs/concepts/papers.md): commands, pages and tests that it names are there."""

from pathlib import Path

import pytest
from django.urls import resolve

from engine.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PAPERS = ("Atlas", "BubbleTea", "CrossPipe", "Rail-only", "DT-FM", "ATOM")


def rows() -> list[list[str]]:
    """(mechanism, source, command, page, test) of each row."""
    page = (ROOT / "docs/concepts/papers.md").read_text(encoding="utf-8")
    table = page.partition("## Where each mechanism is")[2].partition("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines]


def test_every_paper_has_mechanisms() -> None:
    assert {paper for row in rows() for paper in PAPERS if row[1].startswith(paper)} == set(PAPERS)


@pytest.mark.parametrize(("mechanism", "source", "command", "page", "test"), rows())
def test_a_mechanism_has_a_command_a_page_and_a_test(
    mechanism: str, source: str, command: str, page: str, test: str
) -> None:
    assert source.startswith(PAPERS)
    program, name = command.split()
    assert program == "meridian"
    assert name in COMMANDS, mechanism
    if page != "–":  # limits.md says so
        assert resolve(page).func, mechanism
    assert (ROOT / "tests" / test).is_file(), f"{mechanism}: tests/{test} is not there"
