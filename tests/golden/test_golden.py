"""No change of structure alters an answer: every case against what was recorded."""

import hashlib
import json

import pytest

from tests.golden.answers import ANSWERS, cases, recorded

# Of the file of recorded answers: whoever records them again says so here too.
SHA256 = "7dd67d4c8cb4117d54336c3105771e7137c4ebf3ddf7d08a4550fae82c4041c0"
RECORDED = json.loads(ANSWERS.read_text())
CASES = dict(cases())


def test_the_recorded_answers_are_those_that_were_agreed_on() -> None:
    assert hashlib.sha256(ANSWERS.read_bytes()).hexdigest() == SHA256
    assert list(CASES) == list(RECORDED)


@pytest.mark.parametrize("name", CASES)
def test_the_answer_is_the_recorded_one(name: str) -> None:
    now, before = recorded(CASES[name]()), RECORDED[name]
    assert now["figures"] == before["figures"]
    assert now == before
