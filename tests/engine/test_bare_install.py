"""The bare install is the engine: `meridian simulate` runs where neither torch nor Django exists."""

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from engine.cli import COMMANDS
from tests.engine.fig6 import FIG6


def _bare_requirements() -> set[str]:
    """Names of the distributions that `pip install meridian`, without extras, would bring."""
    names: set[str] = set()
    waiting = ["meridian"]
    while waiting:
        name = waiting.pop()
        for requirement in importlib.metadata.requires(name) or []:
            if "extra ==" in requirement:
                continue
            match = re.match(r"[A-Za-z0-9._-]+", requirement)
            assert match
            if match[0] not in names and _installed(match[0]):
                names.add(match[0])
                waiting.append(match[0])
    return names


def _installed(name: str) -> bool:
    try:
        importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment that sees the engine and what it requires, and nothing else."""
    home = tmp_path_factory.mktemp("bare")
    venv.create(home, with_pip=False, symlinks=True)
    site = next((home / "lib").glob("python*")) / "site-packages"
    for name in _bare_requirements():
        distribution = importlib.metadata.distribution(name)
        for top in {Path(str(file)).parts[0] for file in distribution.files or []}:
            source = Path(str(distribution.locate_file(top)))
            target = site / top
            if top not in ("..", "__pycache__") and source.exists() and not target.exists():
                target.symlink_to(source)
    # By its own path: the compiled kernels in the cache are known by it.
    (site / "engine.pth").write_text(f"{Path(__file__).parents[2]}\n")
    return home / "bin" / "python"


def _run(python: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    return subprocess.run(
        [python, "-I", *arguments], input=stdin, capture_output=True, text=True, env=environment, timeout=280
    )


@pytest.mark.parametrize("module", ["torch", "django", "celery"])
def test_the_environment_has_neither(bare_python: Path, module: str) -> None:
    assert "ModuleNotFoundError" in _run(bare_python, "-c", f"import {module}").stderr


def test_a_command_that_needs_torch_says_what_to_install(bare_python: Path) -> None:
    result = _run(bare_python, "-m", "engine.cli", "profile", "-", stdin="{}")
    assert result.returncode == 2
    assert "meridian[runtime]" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_a_command_that_needs_parquet_says_what_to_install(bare_python: Path, tmp_path: Path) -> None:
    (tmp_path / "spans.jsonl").write_text('{"track": "gpu"}\n')
    result = _run(bare_python, "-m", "engine.cli", "analyze", str(tmp_path / "spans.jsonl"))
    assert result.returncode == 2
    assert "meridian[analyze]" in result.stderr


# What each command that cannot be imported here says when it is called.
REFUSALS = """
import json
import engine.cli as cli
group, refusals = cli.cli, {}
for name in cli.COMMANDS:
    try:
        group.get_command(None, name)
    except cli.InputError as error:
        refusals[name] = error.allowed
print(json.dumps(refusals))
"""


def test_the_list_of_commands_needs_nothing_else_and_says_what_they_need(bare_python: Path) -> None:
    result = _run(bare_python, "-m", "engine.cli", "--help")
    assert result.returncode == 0, result.stderr
    text = " ".join(result.stdout.partition("Commands:")[2].split())  # a long line goes on in the next
    assert all(f"{name} {COMMANDS[name].text[:20]}" in text for name in ("simulate", "profile"))
    refusals = json.loads(_run(bare_python, "-c", REFUSALS).stdout)
    assert set(refusals) == {name for name, listed in COMMANDS.items() if listed.needs}
    for name, refusal in refusals.items():
        assert f"{name} {refusal}" in text


def test_simulate_runs_in_it(bare_python: Path) -> None:
    result = _run(bare_python, "-m", "engine.cli", "simulate", "--json", "-", stdin=json.dumps(FIG6))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["makespan"] == 36


def test_the_proven_optimum_is_found_in_it(bare_python: Path) -> None:
    scenario = {"stages": 2, "microbatches": 2, "times": {"forward": 1, "backward": 2}, "policy": "optimal"}
    result = _run(bare_python, "-m", "engine.cli", "simulate", "--json", "-", stdin=json.dumps(scenario))
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["optimal"]


@pytest.mark.long
def test_pip_install_without_extras(tmp_path: Path) -> None:
    """The real thing: pip resolves and installs the bare package from its registry."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "v"], check=True)
    python = tmp_path / "v" / "bin" / "python"
    root = Path(__file__).parents[2]
    subprocess.run([python, "-m", "pip", "install", "-q", root], check=True, timeout=600)
    names = json.loads(_run(python, "-m", "pip", "list", "--format=json").stdout)
    assert not {"torch", "django", "celery"} & {entry["name"].lower() for entry in names}
    result = _run(
        python.parent / "python", "-m", "engine.cli", "simulate", "--json", "-", stdin=json.dumps(FIG6)
    )
    assert json.loads(result.stdout)["makespan"] == 36
