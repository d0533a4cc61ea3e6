"""The static files of production: collected without a server, hashed, imports between them rewritten."""

import json
import os
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


IMPORT = re.compile(r"""^\s*(?:import|export)\b[^"']*["'](\.[^"']+)["']""", re.MULTILINE)


def imports_of(file: Path) -> list[str]:
    """What a module imports, relative to static/."""
    targets = IMPORT.findall(file.read_text())
    return [os.path.relpath(file.parent / target, ROOT / "static") for target in targets]


def test_our_modules_import_each_other_in_no_circle() -> None:
    """A file's hashed name depends on those of its imports: in a circle there is none to be had."""
    modules = {
        path.relative_to(ROOT / "static").as_posix(): imports_of(path)
        for path in (ROOT / "static").rglob("*.js")
    }
    try:
        TopologicalSorter(modules).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' imports '.join(reversed(error.args[1]))}")


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the image's build collects."""
    folder = tmp_path_factory.mktemp("static")
    done = subprocess.run(
        [sys.executable, "manage.py", "collectstatic", "--no-input", "-v", "0"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
        env={
            **os.environ,
            "MERIDIAN_ENV": "production",
            "MERIDIAN_SECRET_KEY": "of-no-use-but-to-collect",
            "MERIDIAN_HOSTS": "localhost",
            "DATABASE_URL": "postgresql://nobody@localhost/none",
            "VALKEY_URL": "redis://localhost/0",
            "MERIDIAN_STATIC_ROOT": str(folder),
        },
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_file_of_ours_has_a_hashed_name(collected: Path) -> None:
    manifest = json.loads((collected / "staticfiles.json").read_text())["paths"]
    ours = {path.relative_to(ROOT / "static").as_posix() for path in (ROOT / "static").rglob("*.*")}
    assert ours <= set(manifest)
    assert "plotly/plotly.min.js" in manifest
    assert all(re.search(r"\.[0-9a-f]{12}(\.|$)", manifest[name]) for name in ours)
    assert all((collected / name).exists() for name in manifest.values())


def test_imports_between_our_modules_lead_to_hashed_files(collected: Path) -> None:
    """A page that loaded an unhashed module would keep an old one after an update."""
    manifest = json.loads((collected / "staticfiles.json").read_text())["paths"]
    hashed = set(manifest.values())
    imports = 0
    for name, file in manifest.items():
        if not name.startswith("js/") or not name.endswith(".js"):
            continue
        for target in IMPORT.findall((collected / file).read_text()):
            file_name = Path(os.path.normpath(Path(file).parent / target)).as_posix()
            assert file_name in hashed, f"{name} imports {target}"
            imports += 1
    assert imports > 10
