"""The compiled event loops call no other kernel: each call would copy some twenty arrays for each op."""

import re
from typing import Any

import pytest

from engine.analyze.kernels import replay
from engine.schedule import greedy_kernel, position_kernel, timing_kernel
from engine.schedule.compiled import load_kernels
from scripts.compile_kernels import schedules, trace


def in_machine_code(kernel: Any) -> set[str]:
    """The engine's kernels that are named in the machine code on disk of one, which names itself."""
    load_kernels()
    file = kernel._cache._cache_file
    names = set[bytes]()
    for name in file._load_index().values():
        (_, _, (machine_code, _)), *_ = file._load_data(name)
        names.update(re.findall(rb"_ZN(6engine\w+?)B", machine_code))
    return {name.decode() for name in names}


def named(module: Any, kernel: str) -> str:
    """A kernel's name in machine code."""
    return "".join(f"{len(part)}{part}" for part in [*module.__name__.split("."), kernel])


@pytest.mark.parametrize("module", [greedy_kernel, position_kernel, timing_kernel])
def test_event_loops_call_no_other_kernel(module: Any) -> None:
    schedules(("varuna", "crosspipe-ud"))  # compiles what is not on disk yet
    assert in_machine_code(module.run) == {named(module, "run")}


def test_a_call_of_another_kernel_is_seen() -> None:
    trace()
    assert in_machine_code(replay.replay) == {named(replay, name) for name in ("replay", "_finish")}
