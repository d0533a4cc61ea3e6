"""How kernels are compiled: cached on disk, without reference counts, and without the GIL.

Kernels here pass many arrays around in named tuples and allocate nothing. Numba would count references to
each array at each call, which costs twenty times what the kernels themselves do. `_nrt=False` leaves that
out, and makes numba refuse a kernel that allocates. A kernel writes only to arrays of its own call, so other
threads may run at the same time.

Numba caches machine code by the source file of a kernel. It does not see changes of other files whose
kernels or named tuples the kernel uses, and would run old code after an upgrade. So a digest of all files
that hold kernels names the cache folder.
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
    """Digest of the names and contents of `files`, whatever their order."""
    hasher = hashlib.blake2b(digest_size=8)
    for file in sorted(files):
        hasher.update(file.name.encode())
        hasher.update(file.read_bytes())
    return hasher.hexdigest()


def _cache_folder() -> Path | None:
    """The folder for machine code of these sources; deletes those of other sources. None: numba chooses."""
    files = [file for folder in HOLD_KERNELS for file in (ENGINE / folder).glob("*.py")]
    above = ENGINE / "__pycache__" / "kernels"
    folder = above / digest(files)
    if not folder.is_dir():
        try:
            shutil.rmtree(above, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:  # the engine's folder is read-only
            return None
    return folder


if not config.CACHE_DIR and (cache_folder := _cache_folder()):  # type: ignore[attr-defined]
    config.CACHE_DIR = str(cache_folder)  # type: ignore[attr-defined]


class _LazyCache(FunctionCache):
    """Numba's cache on disk, without the 0.2 s that numba takes to set up its compiler before it looks there.

    Here that waits until something has to be compiled.
    """

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        with self._guard_against_spurious_io_errors():
            overload = self._load_overload(sig, target_context)
            if overload is not None:
                return overload
        _import_without_scipy()
        return None


def _import_without_scipy() -> None:
    """Import numba's array support without SciPy.

    Numba imports all of scipy.linalg to see whether there is a BLAS, which takes 0.2 s, and no kernel here
    multiplies matrices. If SciPy is loaded already, it costs nothing and stays.
    """
    if "scipy.linalg" in sys.modules:
        return
    sys.modules["scipy.linalg"] = None  # type: ignore[assignment]  # an import of it fails meanwhile
    try:
        importlib.import_module("numba.np.arraymath")
    finally:
        del sys.modules["scipy.linalg"]


def compiled(function: Callable[..., Any]) -> Any:
    """Decorator: compile `function` at its first call; the machine code stays on disk."""
    kernel = njit(nogil=True, _nrt=False)(function)  # type: ignore[call-overload]
    kernel._cache = _LazyCache(function)
    template = kernel.get_call_template

    def of_types(args: Iterable[Any], kws: dict[str, Any]) -> Any:
        """A kernel that another one calls with a constant is not compiled for that constant alone."""
        return template(
            [unliteral(type_) for type_ in args], {name: unliteral(type_) for name, type_ in kws.items()}
        )

    kernel.get_call_template = of_types
    return kernel


def inlined(function: Callable[..., Any]) -> Any:
    """Decorator: a part of compiled kernels, written into each of its callers.

    Named tuples of many arrays are passed by value. A call that LLVM does not inline by itself copies
    kilobytes, which slowed one event loop forty times. Each use is compiled again, so use it sparingly.
    """
    return njit(inline="always", _nrt=False)(function)  # type: ignore[call-overload]
