"""`meridian --help` imports no command; what it says of them is what they say of themselves."""

import ast
import inspect
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from engine import cli

FOLDER = Path(cli.__file__).parent / "commands"

# One process, and a fork for each command: what all of them read is imported once.
LOADED = """
import json, os, sys

import engine.cli


def loaded(*arguments):
    read, write = os.pipe()
    if os.fork() == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        engine.cli.cli(list(arguments), standalone_mode=False)
        os.write(write, json.dumps(sorted(sys.modules)).encode())
        os._exit(0)
    os.close(write)
    with open(read) as answer:
        return json.load(answer)


answers = {"": loaded("--help")}
import engine.job.job
for name in engine.cli.COMMANDS:
    answers[name] = loaded(name, "--help")
print(json.dumps(answers))
"""


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_a_line_is_the_beginning_of_the_command_s_own_help(name: str) -> None:
    listed = cli.COMMANDS[name]
    tree = ast.parse((FOLDER / f"{listed.module}.py").read_text(encoding="utf-8"))
    own = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "command")
    help_text = inspect.cleandoc(ast.get_docstring(own) or "")
    command = click.Command(name, help=help_text)
    assert command.get_short_help_str(1000) == listed.text
    for width in (40, 60, 80):
        assert command.get_short_help_str(width) == click.Command(name, help=listed.text).get_short_help_str(
            width
        )


def test_help_imports_no_other_command_and_no_torch() -> None:
    result = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    modules_of = {name: set(modules) for name, modules in json.loads(result.stdout).items()}
    of = {name: f"engine.commands.{listed.module}" for name, listed in cli.COMMANDS.items()}
    assert not {"torch", "numpy", "pydantic"} & modules_of[""]
    assert not set(of.values()) & modules_of.pop("")
    for name, modules in modules_of.items():
        assert set(of.values()) & modules == {of[name]}, name
        assert not {"torch", "transformers", "scipy", "networkx", "ortools"} & modules, name
