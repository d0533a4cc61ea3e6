"""How kernels are compiled: cached on disk, without reference counts, and without the GIL.

Kernels here pass many arrays around in named tuples and allocate nothing. Numba would count references to
each array at each call, which costs twenty times what the kernels themselves do. `_nrt=False` leaves that
out, and makes numba refuse a kernel that allocates. A kernel writes only to arrays of its own call, so other
threads may run at the same time.

Numba caches machine code by the source file of a kernel. It does not see changes of other files whose
kernels or named tuples the kernel uses, and would run old code after an upgrade. So a digest of all files
that hold kernels names the cache folder.
"""

import functools
import hashlib
import importlib
import shutil
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ENGINE = Path(__file__).parents[1]
# Folders whose files hold kernels, or named tuples that kernels take.
HOLD_KERNELS = (
    "schedule",
    "schedule/searching",
    "simulate",
    "analyze/kernels",
    "plan/placement",
    "prefill/kernels",
)


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


@functools.cache
def _lazy_cache() -> Any:
    """Numba's cache on disk, without the 0.2 s that numba takes to set up its compiler before it looks there.

    Here that waits until something has to be compiled.
    """
    from numba import config
    from numba.core.caching import FunctionCache

    if not config.CACHE_DIR and (folder := _cache_folder()):  # type: ignore[attr-defined]
        config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]

    class LazyCache(FunctionCache):
        def load_overload(self, sig: Any, target_context: Any) -> Any:
            with self._guard_against_spurious_io_errors():
                overload = self._load_overload(sig, target_context)
                if overload is not None:
                    return overload
            _import_without_scipy()
            return None

    return LazyCache


def _compiled(function: Callable[..., Any]) -> Any:
    from numba import njit
    from numba.core.types import unliteral

    cache = _lazy_cache()
    kernel = njit(nogil=True, _nrt=False)(function)  # type: ignore[call-overload]
    kernel._cache = cache(function)
    template = kernel.get_call_template

    def of_types(args: Iterable[Any], kws: dict[str, Any]) -> Any:
        """A kernel that another one calls with a constant is not compiled for that constant alone."""
        return template(
            [unliteral(type_) for type_ in args], {name: unliteral(type_) for name, type_ in kws.items()}
        )

    kernel.get_call_template = of_types
    return kernel


def _inlined(function: Callable[..., Any]) -> Any:
    from numba import njit

    return njit(inline="always", _nrt=False)(function)  # type: ignore[call-overload]


class _Pending:
    """A kernel before numba is there: its first use imports numba, for all kernels at once.

    Most processes of a site import kernels' modules and never call one; numba would cost each of them half a
    second and 50 MB.
    """

    def __init__(self, function: Callable[..., Any], make: Callable[[Callable[..., Any]], Any]) -> None:
        functools.update_wrapper(self, function)
        self.make = functools.cache(lambda: make(function))

    def __call__(self, *args: Any) -> Any:
        load_kernels()
        return self.make()(*args)

    def __getattr__(self, name: str) -> Any:
        load_kernels()
        return getattr(self.make(), name)


_loading = threading.RLock()
_loaded = False


def load_kernels() -> None:
    """Import numba and put its kernels where they waited for it: in every module of the engine."""
    global _loaded
    with _loading:
        if _loaded:
            return
        modules = [module for name, module in list(sys.modules.items()) if name.startswith("engine.")]
        for module in modules:
            for name, value in list(vars(module).items()):
                if isinstance(value, _Pending):
                    setattr(module, name, value.make())
        _loaded = True


def compiled(function: Callable[..., Any]) -> Any:
    """Decorator: compile `function` at its first call; the machine code stays on disk."""
    return _compiled(function) if _loaded else _Pending(function, _compiled)


def inlined(function: Callable[..., Any]) -> Any:
    """Decorator: a part of compiled kernels, written into each of its callers.

    Named tuples of many arrays are passed by value. A call that LLVM does not inline by itself copies
    kilobytes, which slowed one event loop forty times. Each use is compiled again, so use it sparingly.
    """
    return _inlined(function) if _loaded else _Pending(function, _inlined)
