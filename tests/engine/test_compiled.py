"""Machine code is kept by the sources of all kernels: none outlives a change in a file that it uses."""

import importlib
import multiprocessing
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import config

from engine.schedule import compiled, timing_kernel


def test_the_digest_sees_every_change(tmp_path: Path) -> None:
    first, second = tmp_path / "a.py", tmp_path / "b.py"
    first.write_text("x = 1")
    second.write_text("y = 2")
    before = compiled.digest([first, second])
    assert compiled.digest([second, first]) == before
    second.write_text("y = 3")
    assert compiled.digest([first, second]) != before


def test_every_file_with_kernels_is_in_a_folder_that_is_watched() -> None:
    watched = {file for folder in compiled.HOLD_KERNELS for file in (compiled.ENGINE / folder).glob("*.py")}
    holding = {
        file
        for file in compiled.ENGINE.rglob("*.py")
        if "engine.schedule.compiled import" in file.read_text()
    }
    assert holding
    assert holding <= watched


def test_kernels_are_kept_there() -> None:
    assert config.CACHE_DIR
    assert timing_kernel.run.stats.cache_path.startswith(config.CACHE_DIR)


def compile_at_once(start: Any, answers: Any, folder: str) -> None:
    """Call a kernel together with another process; answer how often it was compiled here."""
    sys.path.insert(0, folder)
    start.wait(60)
    kernel = importlib.import_module("kernel_of_two").add
    assert kernel(1, 2) == 3
    answers.put(sum(kernel.stats.cache_misses.values()))


def test_of_two_processes_one_compiles_and_the_other_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    source = (
        "from engine.schedule.compiled import compiled\n\n\n@compiled\ndef add(a, b):\n    return a + b\n"
    )
    (tmp_path / "kernel_of_two.py").write_text(source)
    forks = multiprocessing.get_context("fork")  # numba is imported here already
    start, answers = forks.Barrier(2), forks.Queue()
    both = [
        forks.Process(target=compile_at_once, args=(start, answers, str(tmp_path)), daemon=True)
        for _ in range(2)
    ]
    for one in both:
        one.start()
    assert sorted(answers.get(timeout=120) for _ in both) == [0, 1]
    for one in both:
        one.join(60)
