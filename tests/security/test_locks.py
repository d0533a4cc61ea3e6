"""The locks name every package with hashes, for every platform, and what installs them takes nothing else."""

import hashlib
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from scripts.lock import LOCKS, ROOT, UNLOCKED, needed

ENTRY = re.compile(r"(\S+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
INSTALLERS = ("scripts/setup.sh", "docker/Dockerfile")
NOT_INSTALLED = ("docs", "mlflow", "wandb")  # the first has an environment of its own, people add the others


def entries(path: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Version and hashes of each package of a lock, by canonical name. Fails at a line that is no entry."""
    text = "".join(line for line in (ROOT / path).open() if not line.startswith("#"))
    assert ENTRY.sub("", text) == ""
    return {
        canonicalize_name(name): (version, frozenset(re.findall(r"sha256:(\w+)", hashes)))
        for name, version, hashes in ENTRY.findall(text)
    }


@pytest.mark.parametrize("path", LOCKS)
def test_a_lock_holds_what_its_extra_needs_on_every_platform_and_no_more(path: str) -> None:
    assert set(entries(path)) == needed(LOCKS[path])


def test_the_locks_agree_with_each_other() -> None:
    whole = entries("requirements.lock")
    assert all(whole[name] == one for path in LOCKS for name, one in entries(path).items())


def test_the_versions_are_those_that_the_project_allows() -> None:
    locked = entries("requirements.lock")
    lines = [*PROJECT["dependencies"]]
    for extra, of_extra in PROJECT["optional-dependencies"].items():
        lines += of_extra if extra not in NOT_INSTALLED else []
    for requirement in map(Requirement, lines):
        name = canonicalize_name(requirement.name)
        if name not in (PROJECT["name"], UNLOCKED):
            assert requirement.specifier.contains(locked[name][0]), requirement


def lines_that_install(path: str) -> list[str]:
    text = (ROOT / path).read_text().replace("\\\n", " ")
    return [line for line in text.splitlines() if re.search(r"\bpip install\b", line) and line[0] != "#"]


def test_all_that_is_installed_is_checked_by_hash_but_torch_and_the_project() -> None:
    for path in INSTALLERS:
        for line in lines_that_install(path):
            # The project's build would fetch setuptools, unchecked, were it isolated.
            assert ("--require-hashes" in line) != ("--no-build-isolation" in line), line


def wheel(folder: Path) -> str:
    """Make the wheel of a package `tiny` 1.0. Its SHA-256."""
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("case", ["whole", "changed", "no hash"])
def test_the_set_up_refuses_a_file_that_is_not_of_the_lock(tmp_path: Path, case: str) -> None:
    sha256 = wheel(tmp_path)
    option = {"whole": f" --hash=sha256:{sha256}", "changed": f" --hash=sha256:{'0' * 64}", "no hash": ""}
    (tmp_path / "requirements.lock").write_text(f"tiny==1.0{option[case]}\n")
    (tmp_path / ".venv/bin").mkdir(parents=True)
    python = tmp_path / ".venv/bin/python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    text = (ROOT / "scripts/setup.sh").read_text()
    script = text[text.index("quarters=") : text.index("# All that is missing is torch")]
    alone = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": ".", "PIP_DRY_RUN": "1"}
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")} | alone
    argv = ["bash", "-euo", "pipefail", "-c", script]
    done = subprocess.run(argv, cwd=tmp_path, env=env, capture_output=True, text=True)
    refusals = {
        "whole": "",
        "changed": "THESE PACKAGES DO NOT MATCH THE HASHES",
        "no hash": "Hashes are required",
    }
    assert (done.returncode == 0) == (case == "whole"), done.stderr
    assert refusals[case] in done.stderr
