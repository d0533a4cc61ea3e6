"""ATOM's figures: no check is past its tolerance, and every figure that the text prints has its row."""

from engine.reproduce.atom import EXPERIMENTS


def test_every_check_holds_and_no_printed_figure_is_missing() -> None:
    rows = [row for experiment in EXPERIMENTS for row in experiment.run().rows]
    assert [row.name for row in rows if row.ok is False] == []
    printed = [row.paper for row in rows if row.ok]
    assert {6, 8, 12, 16, 20, 32, 40, 96, 700, 2.8, 68, 2.4, 1_920, 3_072, 91.9, 46.3} <= set(printed)
    assert len({row.name + row.note for row in rows}) == len(rows)
