"""A start that cannot work is one line that names what is wrong, exit status 2, and leaves nothing behind."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo.harness import ROOT, environment
from tests.ports import free_port
from tests.waiting import LIMIT_S

NOBODY_THERE = f"127.0.0.1:{free_port()}"


def _start(var: Path | str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "webapp.supervisor", "--port", str(free_port()), *arguments],
        cwd=ROOT,
        env={**environment(Path(var)), **variables},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )


def _is_one_line(done: subprocess.CompletedProcess[str], *words: str) -> None:
    assert done.returncode == 2, done
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert done.stderr.startswith("meridian: ")
    assert all(word in done.stderr for word in words), done.stderr
    assert "secret" not in done.stderr


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"DATABASE_URL": "mysql://user:secret@host/x"}, ("DATABASE_URL", "postgresql://")),
        ({"DATABASE_URL": f"postgresql://user:secret@{NOBODY_THERE}/x"}, ("DATABASE_URL", NOBODY_THERE)),
        ({"DATABASE_URL": f"postgresql://user:secret@{NOBODY_THERE}"}, ("DATABASE_URL", "no database")),
        ({"DATABASE_URL": "postgresql://user:secret@host:port/x"}, ("DATABASE_URL", "port")),
        ({"VALKEY_URL": "redis:"}, ("VALKEY_URL", "valkey://")),
        ({"VALKEY_URL": f"valkey://:secret@{NOBODY_THERE}/0"}, ("VALKEY_URL", NOBODY_THERE)),
        ({"VALKEY_URL": "redis://host:99999/0"}, ("VALKEY_URL", "ort")),
    ],
)
def test_a_given_server_that_cannot_be_used(
    tmp_path: Path, variables: dict[str, str], words: tuple[str, ...]
) -> None:
    _is_one_line(_start(tmp_path / "var", **variables), *words)
    assert not (tmp_path / "var").exists()


@pytest.mark.parametrize("place", ["/dev/null", "/dev/null/below", "/proc/meridian"])
def test_a_folder_that_cannot_be(place: str) -> None:
    _is_one_line(_start(place), place)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    _is_one_line(_start(tmp_path / "var"), "no permission")


@pytest.fixture
def tiny_disk() -> Iterator[Path]:
    """A file system of 10 MB, where this process may mount one; open to the servers' account."""
    tmp_path = Path(tempfile.mkdtemp(prefix="meridian-tiny-"))
    mount = ["mount", "-t", "tmpfs", "-o", "size=10m", "meridian-test", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
        tmp_path.rmdir()
        pytest.skip("this account may not mount a file system")
    tmp_path.chmod(0o755)
    try:
        yield tmp_path
    finally:
        # What ran in it may still be on its way out.
        for _ in range(20):
            if subprocess.run(["umount", str(tmp_path)], capture_output=True, check=False).returncode == 0:
                tmp_path.rmdir()
                break
            time.sleep(0.2)


def test_a_full_disk(tiny_disk: Path) -> None:
    _is_one_line(_start(tiny_disk / "var"), "disk full", "MB free")


@pytest.mark.parametrize("port", ["0", "65536", "-1", "x", ""])
def test_a_port_that_is_none(tmp_path: Path, port: str) -> None:
    _is_one_line(_start(tmp_path / "var", f"--port={port}"), "--port", "must be a port, 1 to 65535")
    assert not (tmp_path / "var").exists()


@pytest.fixture
def own_var() -> Iterator[Path]:
    """A folder that the servers' account can reach."""
    folder = Path(tempfile.mkdtemp(prefix="meridian-wrong-"))
    folder.chmod(0o711)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize(
    ("variable", "value", "allowed"),
    [
        ("MERIDIAN_KEEP_ITERATIONS", "lots", "must be a number"),
        ("MERIDIAN_NODE_SILENT_S", "1", "at least 4"),
        ("MERIDIAN_ENV", "prod", "development, production"),
    ],
)
def test_a_wrong_value_in_the_environment(own_var: Path, variable: str, value: str, allowed: str) -> None:
    done = _start(own_var, **{variable: value})
    _is_one_line(done, variable, value, allowed)
    assert "Traceback" not in done.stdout
