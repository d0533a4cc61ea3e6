"""The compiled event loops call no other kernel: each call would copy some twenty arrays for each op."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# Numba shows the machine code of what it has compiled itself, not of what it loaded.
LOOPS = """
import json, re
from engine.schedule import greedy_kernel, position_kernel, timing_kernel
from scripts.compile_kernels import schedules

schedules(("varuna", "crosspipe-ud"))
calls = {}
for module in (greedy_kernel, position_kernel, timing_kernel):
    for code in module.run.inspect_asm().values():
        own = "".join(f"{len(part)}{part}" for part in [*module.__name__.split("."), "run"])
        called = set(re.findall(r"(?:call\\w*\\s+|movabsq\\s+\\$)_ZN(6engine\\w+?)B", code))
        calls[module.__name__] = sorted(called - {own})
print(json.dumps(calls))
"""


@pytest.mark.long
def test_event_loops_call_no_other_kernel(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOPS],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    calls = json.loads(done.stdout)
    assert len(calls) == 3
    assert {name: called for name, called in calls.items() if called} == {}
