"""Wall clocks of the site and of each node that jump while everything runs: a library before libc's."""

import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SOURCE = Path(__file__).with_name("clock.c")


@contextmanager
def movable_clocks(names: tuple[str, ...]) -> Iterator[bool]:
    """What is started inside has clocks that `move` moves; false where no C compiler is at hand.

    names : "site", and those of nodes.
    """
    compiler = shutil.which("cc")
    if compiler is None:
        yield False
        return
    folder = Path(tempfile.mkdtemp(prefix="meridian-clocks-"))
    folder.chmod(0o755)  # as root the servers run as another account
    library = folder / "clock.so"
    built = ["-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run([compiler, *built], check=True)
    for name in names:
        (folder / name).write_bytes(struct.pack("q", 0))
    os.environ.update({"CHAOS_CLOCKS": str(folder), "LD_PRELOAD": str(library)})
    try:
        yield True
    finally:
        for name in ("CHAOS_CLOCKS", "LD_PRELOAD"):
            del os.environ[name]
        shutil.rmtree(folder)


def move(name: str, seconds: int) -> None:
    """Set the clock of `name` so many seconds off, from now on. Raises KeyError where clocks are fixed."""
    with (Path(os.environ["CHAOS_CLOCKS"]) / name).open("r+b") as file:
        file.write(struct.pack("q", seconds))
