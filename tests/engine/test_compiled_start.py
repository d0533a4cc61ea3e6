"""A command whose machine code is on disk does not set up the compiler, which takes longer than its work."""

import subprocess
import sys
from pathlib import Path

from engine.schedule import timing_kernel

PLAN = """
import sys
from pathlib import Path
from engine.documents import load_document
from engine.inputs import parse
from engine.plan.answer import plan
from engine.plan.request import PlanRequest

plan(parse(PlanRequest, load_document(Path("examples/five-dcs.json")) | {"method": "algorithm1"}))
print(*sorted({"numba.np.arraymath", "numba.np.npyimpl", "scipy.linalg"} & set(sys.modules)))
"""


def test_kept_machine_code_is_loaded_without_the_compiler() -> None:
    lines = [
        subprocess.run([sys.executable, "-c", PLAN], check=True, capture_output=True, text=True).stdout
        for _ in range(2)  # the first may compile
    ]
    assert lines[1].strip() == ""


def test_a_source_that_was_only_touched_is_not_said_to_be_compiled() -> None:
    """Numba goes by what sources say, not by when they were written."""
    simulate = [sys.executable, "-m", "engine.cli", "simulate", "examples/fig6.json"]
    subprocess.run(simulate, check=True, capture_output=True)
    Path(timing_kernel.__file__).touch()
    again = subprocess.run(simulate, check=True, capture_output=True, text=True)
    assert again.stderr == ""
