"""Whatever text comes in: a value, or one InputError of one line that names what is wrong."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from engine.documents import load_document
from engine.errors import InputError
from engine.inputs import parse
from engine.schedule.scenario import Scenario
from tests.engine.fig6 import FIG6


def _refusal(data: Any) -> InputError:
    with pytest.raises(InputError) as refused:
        parse(Scenario, data)
    return refused.value


def _loaded(folder: Path, text: str) -> Any:
    file = folder / "scenario"
    file.write_text(text, encoding="utf-8")
    return load_document(file)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[1,2",
        "[" * 100_000,
        "[" * 100_000 + "]" * 100_000,
        '{"a":' * 100_000,
        "- " * 5_000,
        "1" * 5_000,
        '{"stages": ' + "1" * 5_000 + "}",
        "stages: 2023-13-45",
        "a: !!python/object:os.system x",
        "\0",
        "a: b: c",
        "a: !!bool abc",
        "a: !!int ''",
        "a: !!timestamp abc",
        "a: !!set [b]",
        "? !!str [a]",
    ],
    ids=lambda text: text[:12],
)
def test_unreadable_text_is_one_line(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as refused:
        _loaded(tmp_path, text)
    assert refused.value.field == "FILE"
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["missing", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        load_document(tmp_path / name)


def test_yaml_that_is_none_says_where(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="at line 3 column 1"):
        _loaded(tmp_path, "stages: 2\npolicy: x\n\tbad: 1\n")
    with pytest.raises(InputError, match="at line 1 column 12"):
        _loaded(tmp_path, '{"stages": ]}')


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xff\xfe{}")
    with pytest.raises(InputError, match="not UTF-8"):
        load_document(tmp_path / "x")


def test_a_value_blown_up_by_aliases_is_refused_in_a_short_line(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(InputError, match="more than 100,000 values, aliases followed") as refused:
        _loaded(tmp_path, "\n".join(lines))
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("text", ['{"a": {"stages": 1, "stages": 2}}', "a:\n  stages: 1\n  stages: 2\n"])
def test_a_field_given_twice_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError, match=r"^stages: \d: is given twice"):
        _loaded(tmp_path, text)


def test_yaml_may_merge_and_override(tmp_path: Path) -> None:
    text = "base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n"
    assert _loaded(tmp_path, text)["use"] == {"x": 1, "y": 3}


@pytest.mark.parametrize(
    ("change", "field", "allowed"),
    [
        ({"times": []}, "times", "must be an object with named fields"),
        ({"times": {"forward": float("nan"), "backward": 1}}, "times.forward", "finite"),
        ({"times": {"forward": [1, 1, 1, float("inf"), 1, 1], "backward": 1}}, "times.forward[3]", "finite"),
        ({"times": {"forward": 1, "bakward": 1}}, "times.bakward", "did you mean 'backward'"),
        ({"stages": 0}, "stages", "greater than or equal to 1"),
        ({"stages": True}, "stages", "not true or false"),
        ({"policy": "zb-h3"}, "policy", "did you mean 'zb-h1'"),
        ({"chunks": 65}, "chunks", "less than or equal to 64"),
        ({"wan": []}, "wan", "2 expected, 0 given"),
        ({"microbatches": 10**30}, "microbatches", "at most"),
        ({"stages": 2001}, "stages", "less than or equal to 2000"),
    ],
)
def test_the_field_and_the_rule_are_named(change: dict[str, Any], field: str, allowed: str) -> None:
    refused = _refusal({**FIG6, **change})
    assert refused.field == field
    assert allowed in refused.allowed


def test_a_whole_number_may_be_written_with_a_point() -> None:
    assert parse(Scenario, {**FIG6, "stages": 6.0, "microbatches": 4.0}) == parse(Scenario, FIG6)
    assert "integer" in _refusal({**FIG6, "stages": 6.5}).allowed


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(field=st.sampled_from([*FIG6, "lan", "memory_limit", "sharing", "spans", "other"]), value=ANYTHING)
@example(field="times", value={"\n": None})
def test_any_value_anywhere_is_taken_or_refused_in_one_line(field: str, value: Any) -> None:
    line = ""
    try:
        parse(Scenario, {**FIG6, field: value})
    except InputError as refused:
        line = str(refused)
    assert "\n" not in line
    assert len(line) < 400
