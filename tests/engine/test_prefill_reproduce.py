"""`meridian reproduce bubbletea`: what is printed comes out, and what is odd is not made to."""

from engine.reproduce import bubbletea


def test_twelve_gpus() -> None:
    rows = {row.name: row for row in bubbletea.utilization().rows}
    assert all(row.ok for row in rows.values() if row.tolerance is not None)
    assert rows["utilization, with BubbleTea"].paper == 94
    assert rows["utilization, cut into chunks of 128 or more"].ours > 97
    assert rows["utilization, the same, first come first served"].ours < 94


def test_fig14() -> None:
    outcome = bubbletea.fig14()
    rows = {row.name: row for row in outcome.rows}
    assert rows["weights per GPU, PP 8"].ok
    assert rows["TTFT, 8,192 tokens, PP 1 over PP 8, whole"].ours < 1 < rows["the same in chunks of 512"].ours
    for plot in outcome.plots:
        assert [series.label for series in plot.series] == ["PP 1", "PP 2", "PP 4", "PP 8"]
