"""How kernels are compiled: cached on disk, and without reference counts.

Kernels here pass many arrays around in named tuples and allocate nothing. Numba would count references to
each array at each call, which costs twenty times what the kernels themselves do; `_nrt=False` leaves that
out, and makes numba refuse a kernel that allocates.
"""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """Decorator: compile `function` at its first call, for good (the machine code is kept on disk)."""
    return njit(cache=True, _nrt=False)(function)  # type: ignore[call-overload]
