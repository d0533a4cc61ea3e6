"""Says beforehand when a command will spend its time on compiling, as the first run ever does."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click


def announce_compilation() -> None:
    """One line on stderr where the scheduling and timing kernels are not in numba's cache on disk."""
    from engine.schedule import greedy_kernel
    from engine.simulate import timing_kernel

    if not all(_cached(module.run, Path(module.__file__)) for module in (greedy_kernel, timing_kernel)):
        click.echo("meridian: first run: compiling the scheduling kernels (seconds; kept on disk)", err=True)


def _cached(kernel: Any, source: Path) -> bool:
    """Whether numba has an index file for `kernel` that is not older than its source."""
    folder = Path(kernel.stats.cache_path)
    return any(_fresh(folder.glob(f"{source.stem}.{kernel.__name__}-*.nbi"), source.stat().st_mtime))


def _fresh(files: Iterable[Path], since: float) -> Iterable[bool]:
    return (file.stat().st_mtime >= since for file in files)
