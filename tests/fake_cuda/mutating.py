"""Production code with one line taken away, to show that its absence is noticed."""

import inspect
import textwrap
from typing import Any

import pytest


def without(patch: pytest.MonkeyPatch, owner: type, method: str, line: str, instead: str = "pass") -> None:
    """Have `instead` in the place of one `line` of a method, until `patch` is undone."""
    function = owner.__dict__[method]
    source = textwrap.dedent(inspect.getsource(function))
    assert source.count(line) == 1, f"{owner.__name__}.{method} has no such line any more: {line}"
    namespace: dict[str, Any] = {}
    exec(source.replace(line, instead), function.__globals__, namespace)
    mutated = namespace[method]
    mutated.__code__ = mutated.__code__.replace(co_qualname=function.__qualname__)  # faults name it
    patch.setattr(owner, method, mutated)
