"""Machine code is kept by the sources of all kernels: none outlives a change in a file that it uses."""

import re
from pathlib import Path

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
        if re.search("^@(compiled|inlined)", file.read_text(), re.MULTILINE)
    }
    assert holding
    assert holding <= watched


def test_kernels_are_kept_there() -> None:
    path = timing_kernel.run.stats.cache_path
    assert config.CACHE_DIR
    assert path.startswith(config.CACHE_DIR)
