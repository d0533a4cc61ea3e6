"""`make gpu` without a GPU: it fits in nine minutes, and the docs name its parts where nothing ran yet."""

import re
from pathlib import Path

from benchmarks.gpu.__main__ import _in_turns
from benchmarks.gpu.parts import PARTS
from benchmarks.gpu.report import Report, markdown

ROOT = Path(__file__).resolve().parents[2]
MINUTES = 9


def test_the_turns_on_one_gpu_take_nine_minutes_at_most() -> None:
    turns = _in_turns([name for name, part in PARTS.items() if part.gpus == 1])
    assert sum(max(PARTS[name].seconds for name in turn) for turn in turns) <= 60 * MINUTES


def test_whatever_never_ran_on_cuda_names_the_part_that_answers_it() -> None:
    text = (ROOT / "docs" / "gpu.md").read_text()
    rows = re.findall(r"^\|.*\*\*never\*\*.*$", text, re.MULTILINE)
    assert rows
    for row in rows:
        named = re.findall(r"`(\w+)`", row.rpartition("**never**")[2])
        assert named, row
        assert set(named) <= PARTS.keys(), row


def test_a_part_for_which_a_machine_has_too_few_gpus_says_so_in_the_table() -> None:
    text = markdown([Report(part="gpus", skipped="needs 2 GPUs; torch sees 1")], "a GPU", "2026-01-01")
    assert "| gpus | skipped | needs 2 GPUs; torch sees 1 | | |" in text
