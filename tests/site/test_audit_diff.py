"""Differences of an audit row: every leaf once, changed where it differs, nothing of either side lost."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from webapp.accounts.diff import LONGEST, differences, summary

KEYS = st.text("abcxyz", min_size=1, max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=4),
    lambda inner: st.dictionaries(KEYS, inner, max_size=3) | st.lists(inner, max_size=3),
    max_leaves=8,
)
ROWS = st.none() | st.dictionaries(KEYS, JSON, max_size=4)


def count_leaves(value: Any) -> int:
    """Written independently: values that hold no other value."""
    inner = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
    return sum(count_leaves(one) for one in inner) if inner else 1


@given(ROWS)
def test_the_same_on_both_sides_is_no_change(row: Any) -> None:
    assert not any(one.changed for one in differences(row, row))
    assert summary(row, row) == ""


@given(ROWS, ROWS)
def test_every_leaf_of_both_sides_is_there(before: Any, after: Any) -> None:
    changes = differences(before, after)
    assert sum(one.before is not None for one in changes) == (count_leaves(before) if before else 0)
    assert sum(one.after is not None for one in changes) == (count_leaves(after) if after else 0)
    assert len({one.path for one in changes}) == len(changes)


@given(ROWS, ROWS)
def test_turned_round_it_is_turned_round(before: Any, after: Any) -> None:
    there = {(one.path, one.before, one.after) for one in differences(before, after)}
    back = {(one.path, one.after, one.before) for one in differences(after, before)}
    assert there == back


def test_a_summary_is_short_and_says_how_many_more() -> None:
    after = {f"k{number}": "x" * 500 for number in range(10)}
    text = summary(None, after)
    assert text.endswith("and 7 more")
    assert len(text) < 3 * (LONGEST + 10) + 20
    assert summary({"role": "viewer"}, {"role": "operator"}) == "role: viewer → operator"
