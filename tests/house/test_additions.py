"""A policy and a GPU type are one file and one line each, a page is a view, a template and a line: each is
added to a copy of the sources, and used there."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
POLICY = '''"""Mine: GPipe under another name."""

from engine.schedule.gpipe import policy

__all__ = ["policy"]
'''
VIEW = """from django.contrib.auth.decorators import login_not_required
from django.shortcuts import render


@login_not_required
def mine(request):
    return render(request, "design/mine.html", {"title": "Mine"})
"""
BUILD = """from engine.inputs import parse
from engine.schedule import Scenario, build
cell = {
    "stages": 2, "dc_of_stage": [0, 1], "microbatches": 2, "policy": "mine",
    "times": {"forward": 1, "backward": 2}, "wan": {"latency": 1, "transfer": 1},
}
print(build(parse(Scenario, cell)).schedule)
"""
FETCH = """import django
django.setup()
from django.test import Client
answer = Client(SERVER_NAME="127.0.0.1").get("/mine/")
assert answer.status_code == 200, answer.status_code
print(answer.content.decode())
"""


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in ("engine", "webapp", "templates", "static"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def add_line(file: Path, after: str, line: str) -> None:
    text = file.read_text(encoding="utf-8")
    assert text.count(after) == 1
    file.write_text(text.replace(after, f"{after}\n{line}"), encoding="utf-8")


def run(copy: Path, *command: str, given: str = "") -> str:
    env = {**os.environ, "PYTHONPATH": str(copy), "MERIDIAN_VAR": str(copy / "var")}
    done = subprocess.run(
        [sys.executable, *command], cwd=copy, env=env, input=given, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_policy_is_a_file_and_a_line(copy: Path) -> None:
    (copy / "engine/schedule/mine.py").write_text(POLICY, encoding="utf-8")
    add_line(
        copy / "engine/schedule/registry.py",
        "ROWS = (",
        '    ("mine", "mine", "My policy", "does as it likes."),',
    )
    assert "P0 S0: F0 F1 B1 B0" in run(copy, "-", given=BUILD)
    assert "My policy" in run(copy, "-m", "engine.cli", "simulate", "--help")


def test_a_gpu_type_is_an_entry(copy: Path) -> None:
    entry = (
        '  "mine": {"label": "Mine", "peak_tflops": {"bf16": 1.0}, "memory_gib": 8, "hbm_gb_s": 100, '
        '"host_gb_s": 16, "link_gb_s": 16, "nic_gb_s": null, "source": "a test", "date": "2026"},'
    )
    file = copy / "engine/data/gpus/gpus.json"
    file.write_text(file.read_text(encoding="utf-8").replace("{", "{\n" + entry, 1), encoding="utf-8")
    output = run(
        copy, "-c", "from engine.cluster.gpus import catalogue, gpu; print(gpu('mine'), *catalogue())"
    )
    assert "label='Mine'" in output
    assert "mine" in output.split()


def test_a_page_is_a_view_a_template_and_a_line(copy: Path) -> None:
    (copy / "webapp/design/mine.py").write_text(VIEW, encoding="utf-8")
    (copy / "templates/design/mine.html").write_text(
        '{% extends "base.html" %}{% block content %}<h1>My page</h1>{% endblock %}', encoding="utf-8"
    )
    urls = copy / "webapp/design/urls.py"
    add_line(urls, "urlpatterns = [", '    path("mine/", mine, name="mine"),')
    urls.write_text(
        "from webapp.design.mine import mine\n" + urls.read_text(encoding="utf-8"), encoding="utf-8"
    )
    assert "My page" in run(copy, "-", given=FETCH)


KIND = '''class Mine(OfRank):
    """Mine happened."""

    key = ("run", "generation", "rank", "t")
    kind: Literal["mine"] = "mine"
    t: Unix
    """When."""


TrainingEvent = Mine | Rank |'''
SEND = """from engine.job.events.event import from_json
print(from_json('{"kind": "mine", "rank": 0, "t": 1.5}').sent_by("a", 1).to_json().decode())
from scripts.events_docs import text
print(text())
"""


def test_a_kind_of_event_is_a_class_in_the_file_of_its_group(copy: Path) -> None:
    shutil.copytree(ROOT / "scripts", copy / "scripts")
    (copy / "docs").mkdir()
    shutil.copy(ROOT / "docs/events.md", copy / "docs")
    file = copy / "engine/job/events/training.py"
    source = file.read_text(encoding="utf-8")
    assert source.count("TrainingEvent = Rank |") == 1
    file.write_text(source.replace("TrainingEvent = Rank |", KIND), encoding="utf-8")
    output = run(copy, "-", given=SEND)
    assert '"kind":"mine"' in output
    assert "Mine happened." in output
