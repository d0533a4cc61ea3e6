"""`meridian reproduce bubbletea`: what is printed comes out, and what is odd is not made to."""

from collections.abc import Callable

import pytest

from engine.reproduce import ORDERS, Explained, Order, bubbletea


def _by_rank(figure: Callable[[Order], float]) -> dict[Order, float]:
    return dict.fromkeys(ORDERS, figure("rank"))


@pytest.fixture
def by_rank_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves the replays under other rules, which test_reproduce_rows has (long)."""
    monkeypatch.setattr(bubbletea, "under_all", _by_rank)


@pytest.mark.usefixtures("by_rank_alone")
def test_twelve_gpus() -> None:
    rows = {row.name: row for row in bubbletea.utilization().rows}
    assert [row.name for row in rows.values() if not row.ok] == []
    assert rows["utilization, with BubbleTea"].paper == 94
    for other in ("first come first served", "no queue", "the trace at 50 x its rate"):
        row = rows[f"utilization, {other}"]
        assert row.ours < 94
        assert isinstance(row.answer, Explained)
        assert row.answer.without_cause == rows["utilization, with BubbleTea"].ours


@pytest.mark.usefixtures("by_rank_alone")
def test_waiting_on_a_thousand_gpus_depends_on_the_phase_of_the_cells() -> None:
    rows = {row.name: row for row in bubbletea.scale().rows}
    assert [row.name for row in rows.values() if not row.ok] == []
    assert rows["waiting, cells out of phase"].ours < 8 < rows["waiting, cells in phase"].ours


def test_chunks_fill_more_of_the_bubbles() -> None:
    chunked = bubbletea.run(bubbletea.TESTBED, bubbletea.CHUNKED, bubbletea.without_end(1, 10_000))
    assert chunked.utilization_after > 0.97


def test_fig14() -> None:
    outcome = bubbletea.fig14()
    rows = {row.name: row for row in outcome.rows}
    assert all(row.ok for row in outcome.rows)
    whole = rows["TTFT, 8,192 tokens, PP 1 over PP 8"]
    assert whole.status == "refuted"
    assert whole.ours < 1
    for plot in outcome.plots:
        assert [series.label for series in plot.series] == ["PP 1", "PP 2", "PP 4", "PP 8"]
