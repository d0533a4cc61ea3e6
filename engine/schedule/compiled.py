"""How kernels are compiled: cached on disk, without reference counts, and run without the GIL.

Kernels here pass many arrays around in named tuples and allocate nothing. Numba would count references to
each array at each call, which costs twenty times what the kernels themselves do; `_nrt=False` leaves that
out, and makes numba refuse a kernel that allocates. What they write to belongs to one call: other threads
may run meanwhile.

Numba keeps machine code by the source file of a kernel, and does not see when another file changes whose
kernels or named tuples it uses: after an upgrade it would run what was compiled before. So the folder that
keeps it is named by a digest of all files that hold kernels.
"""

import hashlib
import importlib
import shutil
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from numba import config, njit
from numba.core.caching import FunctionCache
from numba.core.types import unliteral

ENGINE = Path(__file__).parents[1]
# Folders whose files hold kernels, or named tuples that kernels take.
HOLD_KERNELS = ("schedule", "schedule/searching", "simulate", "plan/placement", "prefill/kernels")


def digest(files: Iterable[Path]) -> str:
    """Of the names and contents of `files`, whatever their order."""
    found = hashlib.blake2b(digest_size=8)
    for file in sorted(files):
        found.update(file.name.encode())
        found.update(file.read_bytes())
    return found.hexdigest()


def _kept_in() -> Path | None:
    """The folder for machine code of these sources; those of other sources go. None: numba chooses."""
    files = [file for folder in HOLD_KERNELS for file in (ENGINE / folder).glob("*.py")]
    above = ENGINE / "__pycache__" / "kernels"
    folder = above / digest(files)
    if not folder.is_dir():
        try:
            shutil.rmtree(above, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:  # installed where we may not write
            return None
    return folder


if not config.CACHE_DIR and (kept_in := _kept_in()):  # type: ignore[attr-defined]
    config.CACHE_DIR = str(kept_in)  # type: ignore[attr-defined]


class _Kept(FunctionCache):
    """Numba's cache on disk, which sets up its compiler before it looks for what was compiled: 0.2 s of each
    command. Here that waits until something has to be compiled.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with self._guard_against_spurious_io_errors():
            kept = self._load_overload(sig, target_context)
            if kept is not None:
                return kept
        _import_without_scipy()
        return None


def _import_without_scipy() -> None:
    """Numba imports all of scipy.linalg to see whether there is a BLAS, which takes 0.2 s, and no kernel here
    multiplies matrices. Where SciPy is loaded already it costs nothing and stays.
    """
    if "scipy.linalg" in sys.modules:
        return
    sys.modules["scipy.linalg"] = None  # type: ignore[assignment]  # an import of it fails meanwhile
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        del sys.modules["scipy.linalg"]


def compiled(function: Callable[..., Any]) -> Any:
    """Decorator: compile `function` at its first call, for good (the machine code is kept on disk)."""
    made = njit(nogil=True, _nrt=False)(function)  # type: ignore[call-overload]
    made._cache = _Kept(function)
    template = made.get_call_template

    def of_types(args: Iterable[Any], kws: dict[str, Any]) -> Any:
        """A kernel that another one calls with a constant is not compiled for that constant alone."""
        return template(
            [unliteral(type_) for type_ in args], {name: unliteral(type_) for name, type_ in kws.items()}
        )

    made.get_call_template = of_types
    return made


def inlined(function: Callable[..., Any]) -> Any:
    """Decorator: a part of compiled kernels, written into each of its callers.

    Named tuples of many arrays are passed by value: a call that LLVM does not inline by itself copies
    kilobytes, which made one event loop forty times slower. Each use is compiled again: keep them few.
    """
    return njit(inline="always", _nrt=False)(function)  # type: ignore[call-overload]
