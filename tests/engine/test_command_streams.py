"""`meridian` with standard streams that a shell has closed, filled up or cut off."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIG6 = "examples/fig6.json"
MERIDIAN = f"{sys.executable} -m engine.cli"


def shell(line: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of a line of shell."""
    done = subprocess.run(["bash", "-c", line], cwd=ROOT, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def test_a_closed_standard_input_is_bad_input() -> None:
    status, out, err = shell(f"{MERIDIAN} simulate - <&-")
    assert (status, out) == (2, "")
    assert err == "meridian: FILE: '-': cannot be read (it is closed)\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_a_full_disk_behind_standard_output_is_said() -> None:
    status, _, err = shell(f"{MERIDIAN} simulate {FIG6} --json > /dev/full")
    assert status == 1
    assert err == "meridian: no space left for the output\n"


def test_a_reader_that_goes_away_is_no_fault() -> None:
    status, out, err = shell(
        f"set -o pipefail; {MERIDIAN} simulate {FIG6} --json | head -c 1; exit ${{PIPESTATUS[0]}}"
    )
    assert (status, out, err) == (0, "{", "")
