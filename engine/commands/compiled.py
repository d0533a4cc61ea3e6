"""Announces that a command must first compile its kernels, as at the very first run."""

from pathlib import Path
from typing import Any

import click


def announce_compilation() -> None:
    """Print one line on stderr if numba's cache on disk lacks the scheduling and timing kernels."""
    from engine.schedule import greedy_kernel, timing_kernel

    if not all(_cached(module.run, module.__file__) for module in (greedy_kernel, timing_kernel)):
        click.echo("meridian: first run: compiling the scheduling kernels (seconds; then cached)", err=True)


def announce_placement_compilation() -> None:
    """The same for the kernels of placement."""
    from engine.plan.placement import kernel_search as kernels

    if not all(
        _cached(kernel, kernels.__file__) for kernel in (kernels.score, kernels.circles, kernels.anneal)
    ):
        click.echo("meridian: first run: compiling the placement kernels (seconds; then cached)", err=True)


def announce_prefill_compilation() -> None:
    """The same for the kernels of prefill."""
    from engine.prefill.kernels import place as kernels

    if not all(_cached(kernel, kernels.__file__) for kernel in (kernels.find, kernels.take_all)):
        click.echo("meridian: first run: compiling the prefill kernels (seconds; then cached)", err=True)


def announce_replay_compilation() -> None:
    """The same for the kernels that replay traces."""
    from engine.analyze.kernels import replay as kernels

    if not all(_cached(kernel, kernels.__file__) for kernel in (kernels.sort, kernels.replay)):
        click.echo("meridian: first run: compiling the replay kernels (seconds; then cached)", err=True)


def _cached(kernel: Any, source: str | None) -> bool:
    """Whether numba has an index file for `kernel`. Other sources have another folder."""
    return any(Path(kernel.stats.cache_path).glob(f"{Path(source or '').stem}.{kernel.__name__}-*.nbi"))
