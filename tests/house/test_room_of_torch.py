"""The rooms before `nn` are read without torch: the site and a node agent have none.

Numba is imported with the first kernel that is called: most processes of a site never call one.
"""

import ast
import subprocess
import sys

import pytest

from tests.house.imports import sources
from tests.house.rooms import ENGINE, number_of, room_of

WITHOUT = sorted(
    name
    for name in sources()
    if name.startswith("engine.") and number_of(room_of(name), ENGINE) < number_of("nn", ENGINE)
)


def test_no_module_before_nn_names_torch() -> None:
    for name in WITHOUT:
        for node in ast.walk(ast.parse(sources()[name].read_text(encoding="utf-8"))):
            named = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any(one.partition(".")[0] == "torch" for one in named), name


@pytest.mark.parametrize("room", ["job", "control", "transport"])
def test_a_whole_room_is_imported_without_torch_and_numba(room: str) -> None:
    names = [name for name in WITHOUT if room_of(name) == room]
    loads = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
    code = loads + "assert not {'torch', 'numba'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
