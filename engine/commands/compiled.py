"""Announces a command that has to compile first, as the very first run does."""

from pathlib import Path
from typing import Any

import click


def announce_compilation() -> None:
    """One line on stderr where the scheduling and timing kernels are not in numba's cache on disk."""
    from engine.schedule import greedy_kernel, timing_kernel

    if not all(_cached(module.run, module.__file__) for module in (greedy_kernel, timing_kernel)):
        click.echo("meridian: first run: compiling the scheduling kernels (seconds; kept on disk)", err=True)


def announce_placement_compilation() -> None:
    """The same for the kernels of placement."""
    from engine.plan.placement import kernel_search as kernels

    if not all(
        _cached(kernel, kernels.__file__) for kernel in (kernels.score, kernels.circles, kernels.walk)
    ):
        click.echo("meridian: first run: compiling the placement kernels (seconds; kept on disk)", err=True)


def announce_prefill_compilation() -> None:
    """The same for the kernels of prefill."""
    from engine.prefill.kernels import place as kernels

    if not all(_cached(kernel, kernels.__file__) for kernel in (kernels.find, kernels.take_all)):
        click.echo("meridian: first run: compiling the prefill kernels (seconds; kept on disk)", err=True)


def _cached(kernel: Any, source: str | None) -> bool:
    """Whether numba has an index file for `kernel` that is not older than its source."""
    path = Path(source or "")
    indexes = Path(kernel.stats.cache_path).glob(f"{path.stem}.{kernel.__name__}-*.nbi")
    return any(index.stat().st_mtime >= path.stat().st_mtime for index in indexes)
