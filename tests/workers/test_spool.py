"""The spool against a list in memory: order, exactly what was put in, bounds, restarts, cut-off lines."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.spool import SegmentQueue, Spool

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=8)),
        st.tuples(st.just("take"), st.integers(1, 10)),
        st.tuples(st.just("peek"), st.integers(1, 10)),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=30,
)


@given(steps=STEPS)
def test_everything_comes_out_once_and_in_order(steps: list) -> None:
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder), 10**6, segment_bytes=100)
        expected: list[bytes] = []
        number = 0
        for step, value in steps:
            if step == "append":
                entries = []
                for vital, size in value:
                    number += 1
                    entries.append((vital, (number, b"x" * size + b" %d" % number)))
                spool.append([e for v, e in entries if v], [e for v, e in entries if not v])
                expected += [text for _, (_, text) in entries]
            elif step == "take":
                got = spool.peek(value)
                assert got == expected[:value]
                spool.advance()
                del expected[: len(got)]
            elif step == "peek":
                assert spool.peek(value) == expected[:value]
            else:
                # A restart may repeat what one segment of each queue still holds, and never loses.
                spool = Spool(Path(folder), 10**6, segment_bytes=100)
                lines = spool.peek(10**6)
                assert [text for text in lines if text in expected] == expected
                expected = lines
            assert len(spool) == len(expected)
        assert spool.dropped == 0


def test_past_its_bound_the_oldest_spans_go_and_are_counted_and_nothing_vital(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit_bytes=8_000, segment_bytes=1_000)
    for number in range(0, 2000, 2):
        spool.append([(number, b"vital")], [(number + 1, b"span" * 10)])
    lines = spool.peek(10**6)
    assert lines.count(b"vital") == 1000
    spans = lines.count(b"span" * 10)
    assert 0 < spans < 300
    assert spool.dropped == 1000 - spans
    assert lines[-1] == b"span" * 10  # the newest are the ones that stay


def test_what_is_dropped_between_peek_and_advance_is_not_forgotten_twice(tmp_path: Path) -> None:
    spool = Spool(tmp_path, limit_bytes=4_000, segment_bytes=500)
    spool.append([], [(n, b"%03d" % n + b"." * 90) for n in range(6)])
    assert len(spool.peek(6)) == 6
    for n in range(6, 100):
        spool.append([], [(n, b"%03d" % n + b"." * 90)])
    spool.advance()
    rest = [int(text[:3]) for text in spool.peek(1000)]
    assert rest == list(range(100 - len(rest), 100))
    assert spool.dropped + len(rest) >= 100 - 6


def test_a_line_cut_off_by_a_crash_is_cut_away(tmp_path: Path) -> None:
    queue = SegmentQueue(tmp_path, None)
    queue.append([(1, b"one"), (2, b"two")])
    (segment,) = tmp_path.glob("*.jsonl")
    with segment.open("ab") as file:
        file.write(b"3 thr")
    again = SegmentQueue(tmp_path, None)
    again.append([(4, b"four")])
    assert again.peek(10) == [(1, b"one"), (2, b"two"), (4, b"four")]


def test_a_full_disk_refuses_the_whole_and_leaves_no_half_lines() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with tempfile.TemporaryDirectory() as folder:
        queue = SegmentQueue(Path(folder), None)
        queue.append([(1, b"one")])
        (segment,) = Path(folder).glob("*.jsonl")
        content = segment.read_bytes()
        segment.unlink()
        segment.symlink_to(full)
        with pytest.raises(OSError, match="No space"):
            queue.append([(2, b"two")])
        segment.unlink()
        segment.write_bytes(content)
        queue.append([(3, b"three")])
        assert queue.peek(10) == [(1, b"one"), (3, b"three")]
