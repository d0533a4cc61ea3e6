"""Rules that the front end's files keep whatever the pages show."""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from django.template.loader import get_template

ROOT = Path(__file__).resolve().parents[2]
TEMPLATES = sorted((ROOT / "templates").rglob("*.html"))
SCRIPTS = sorted((ROOT / "static/js").rglob("*.js"))
STYLES = sorted((ROOT / "static/css").glob("*.css"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_nothing_is_inline_in_a_template(path: Path) -> None:
    text = path.read_text()
    assert not re.search(r"<script(?![^>]*\bsrc=)", text), "a script without src needs a nonce; use static/js"
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=", text)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_a_comment_of_a_template_is_one_line(path: Path) -> None:
    opened = [line for line in path.read_text().splitlines() if "{#" in line and "#}" not in line]
    assert not opened, "Django shows a comment of two lines to everybody"


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.name)
def test_imports_of_a_module_exist(path: Path) -> None:
    for name, source in re.findall(r"import \{([^}]*)\} from \"([^\"]+)\"", path.read_text()):
        target = (path.parent / source).resolve()
        assert target.is_file(), source
        for wanted in re.split(r"\s*,\s*", name.strip(" ,\n")):
            assert re.search(
                rf"export (?:const [^;]*?|(?:async )?function |class )(?<![\w$]){re.escape(wanted)}(?![\w$])",
                target.read_text(),
            ), f"{wanted} in {source}"


def test_every_colour_token_that_is_used_is_defined() -> None:
    defined = set(re.findall(r"(--[\w-]+):", (ROOT / "static/css/tokens.css").read_text()))
    used = {name for path in STYLES for name in re.findall(r"var\((--[\w-]+)\)", path.read_text())}
    names = re.search(r"const NAMES = \[(.*?)\]", (ROOT / "static/js/lib/tokens.js").read_text(), re.S)
    assert names
    used |= {f"--{name}" for name in re.findall(r'"([\w-]+)"', names[1])}
    assert used <= defined


def test_colours_stand_in_the_token_file_only() -> None:
    for path in STYLES:
        if path.name != "tokens.css":
            assert not re.search(r":[^;]*#[0-9a-fA-F]{3,8}\b", path.read_text()), path.name


def test_plotly_still_looks_for_the_ids_that_keep_it_from_writing_styles() -> None:
    spec = find_spec("plotly")
    assert spec
    assert spec.submodule_search_locations
    bundle = (Path(spec.submodule_search_locations[0]) / "package_data/plotly.min.js").read_text(
        errors="replace"
    )
    page = (ROOT / "templates/live/run_detail.html").read_text()
    maps = re.search(r'name="plotly-maps" id="(\w+)"', page)
    assert maps
    assert f'getElementById("{maps[1]}")' in bundle
    assert ".no-inline-styles" in bundle


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda p: p.name)
def test_a_template_compiles(path: Path) -> None:
    get_template(str(path.relative_to(ROOT / "templates")))
