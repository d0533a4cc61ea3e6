"""Fetch what a GPU machine without a network may lack: ``python -m benchmarks.gpu.carry FOLDER``.

Wheels for CPython 3.12 on x86-64 Linux, in the versions of requirements.lock; `python -m benchmarks.gpu
--wheels FOLDER` installs them there. The machine's own PyTorch for its CUDA, and what came with it, stay.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).resolve().parent.parent.parent / "requirements.lock"
LACKING = (
    "annotated-types",
    "immutabledict",
    "ortools",
    "protobuf",
    "pydantic",
    "pydantic_core",
    "typing-inspection",
)
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_27_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
)


def main() -> int:
    """Read the folder and fill it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.carry", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("more", nargs="*", help="other packages of requirements.lock that the machine lacks")
    arguments = parser.parse_args()
    locked = dict(re.findall(r"^(\S+)==(\S+)", LOCK.read_text(), re.MULTILINE))
    names = [*LACKING, *arguments.more]
    for name in names:
        if name not in locked:
            parser.error(f"{name}: requirements.lock does not name it")
    pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    pip += ["--python-version", "3.12", "--implementation", "cp", "-d", str(arguments.folder)]
    for platform in PLATFORMS:
        pip += ["--platform", platform]
    return subprocess.run([*pip, *(f"{name}=={locked[name]}" for name in names)]).returncode


if __name__ == "__main__":
    raise SystemExit(main())
