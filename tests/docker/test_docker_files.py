"""docker/: the files say what we promise of the images, and agree with each other and with the code.

What their lines do is tried by `python -m scripts.docker_lines` (docs/deploy.md); no image is built anywhere.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.docker_room import context_files
from scripts.dockerfile import Instruction, Stage, parse
from webapp.servers.endpoints import given
from webapp.supervisor.given_files import SECRET
from webapp.supervisor.probe import BEATS
from webapp.supervisor.services import site_services

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
COMPOSE = ("compose.yaml", "node/compose.yaml", "node/gpu.yaml")
_, STAGES = parse(DOCKER / "Dockerfile")
FINAL = [stage for stage in STAGES if stage.name in ("site", "node")]


def compose(name: str) -> dict[str, Any]:
    document = yaml.safe_load((DOCKER / name).read_text())
    assert isinstance(document, dict)
    return document


def of(stage: Stage, word: str) -> list[Instruction]:
    return [one for one in stage.instructions if one.word == word]


def test_both_images_are_there() -> None:
    assert [stage.name for stage in FINAL] == ["site", "node"]


@pytest.mark.parametrize("stage", FINAL, ids=lambda stage: stage.name)
def test_an_image_runs_without_root_is_probed_and_holds_nothing_that_builds(stage: Stage) -> None:
    (user,) = of(stage, "USER")
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", user.text)  # by number: Kubernetes can see that it is not root
    assert len(of(stage, "HEALTHCHECK")) == 1
    assert of(stage, "ENTRYPOINT")[0].argv
    assert of(stage, "CMD")[0].argv
    bases = {one.name: one for one in STAGES}
    line = [stage]
    while line[-1].base in bases:
        line.append(bases[line[-1].base])
    assert not any(one.name.startswith("build") for one in line)
    assert not any("pip" in one.text or "apt" in one.text for part in line for one in of(part, "RUN"))
    copied = [one for one in stage.instructions if one.word == "COPY" and "from" not in one.flags]
    assert all(one.text.startswith("docker/") for one in copied)
    # What is copied and not owned by the account cannot be changed by it.
    owned = [one.text.split()[-1] for one in of(stage, "COPY") if "chown" in one.flags]
    assert owned in ([], ["/var/cache/meridian"])


def test_stages_are_built_in_order_and_from_the_locked_versions() -> None:
    known: set[str] = set()
    for stage in STAGES:
        assert stage.base in known or stage.base.startswith("python:")
        assert all(one.flags["from"] in known for one in of(stage, "COPY") if "from" in one.flags)
        known.add(stage.name)
    installs = [one.text for stage in STAGES for one in of(stage, "RUN") if "pip install" in one.text]
    assert installs
    assert all("--require-hashes" in text or "--no-build-isolation" in text for text in installs)


def test_no_secret_is_in_the_dockerfile() -> None:
    for stage in STAGES:
        for one in (*of(stage, "ENV"), *of(stage, "ARG")):
            assert not any(name in one.text for name in SECRET), one


def test_everything_that_is_copied_is_in_the_build_context_and_secrets_are_not(tmp_path: Path) -> None:
    for stage in STAGES:
        for one in of(stage, "COPY"):
            if "from" in one.flags:
                continue
            for source in one.text.split()[:-1]:
                assert context_files(ROOT, source, tmp_path).exists()
    for left_out in ("docker/secrets.sh", "tests", ".git", "CHANGELOG.md"):
        with pytest.raises(FileNotFoundError):
            context_files(ROOT, left_out, tmp_path)
    engine = context_files(ROOT, "engine", tmp_path)
    assert not list(engine.rglob("*.pyc"))
    assert (engine / "cli.py").exists()


def test_the_context_ignores_the_secrets_folder(tmp_path: Path) -> None:
    (tmp_path / "docker/secrets").mkdir(parents=True)
    (tmp_path / "docker/secrets/secret_key").write_text("hush")
    shutil.copy(ROOT / ".dockerignore", tmp_path)
    with pytest.raises(FileNotFoundError):
        context_files(tmp_path, "docker", tmp_path / "copy")
    assert "docker/secrets/" in (ROOT / ".gitignore").read_text().split()


@pytest.mark.parametrize("name", COMPOSE)
def test_a_compose_file_fits_the_specification(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", DOCKER / name],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout


def test_hadolint_finds_nothing_that_matters() -> None:
    hadolint = shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("no hadolint here")
    done = subprocess.run(
        [hadolint, "--failure-threshold", "warning", DOCKER / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", COMPOSE[:2])
def test_what_a_service_uses_is_declared(name: str) -> None:
    whole = compose(name)
    services = whole["services"]
    for service, one in services.items():
        assert set(one.get("depends_on", {})) <= set(services), service
        assert set(one.get("secrets", [])) <= set(whole.get("secrets", {})), service
        for volume in one.get("volumes", []):
            assert volume.split(":")[0] in whole["volumes"], service
        for config in one.get("configs", []):
            assert (DOCKER / whole["configs"][config["source"]]["file"]).exists()
        # A restarted container, a bounded log, and a stop that is not cut short.
        assert one["restart"] == ("no" if service == "migrate" else "unless-stopped")
        assert "max-size" in one["logging"]["options"]
        assert service == "migrate" or "stop_grace_period" in one
        if one["image"].startswith("meridian-"):
            assert one["cap_drop"] == ["ALL"]
            assert one["init"] is True  # ranks are reaped; signals arrive
            target = one["build"]["target"]
            assert target in {stage.name for stage in FINAL}
        else:
            assert "healthcheck" in one
            assert re.search(r":\d+\.\d+", one["image"]), f"{one['image']}: not pinned to a version"


def test_the_site_is_run_as_the_supervisor_runs_it() -> None:
    services = compose("compose.yaml")["services"]
    parts = {one.name: one for one in site_services(8000, ROOT / "var")}
    assert set(services) == {"postgres", "valkey", "migrate", *parts}
    for name, part in parts.items():
        assert services[name]["command"] == [name]
        grace_s = float(services[name]["stop_grace_period"].removesuffix("s"))
        assert grace_s > part.patience_s
        assert services[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    for name in BEATS:
        test = services[name]["healthcheck"]["test"]
        assert test == ["CMD", "python", "-m", "webapp.supervisor.probe", name]
    (probe,) = (one for stage in FINAL if stage.name == "site" for one in of(stage, "HEALTHCHECK"))
    assert probe.text.endswith('["python", "-m", "webapp.supervisor.probe", "web"]')


def test_secrets_come_from_files_that_the_script_makes(tmp_path: Path) -> None:
    whole = compose("compose.yaml")
    environment = whole["services"]["web"]["environment"]
    given_as_file = {name.removesuffix("_FILE") for name in environment if name.endswith("_FILE")}
    assert given_as_file == set(SECRET) - {"MERIDIAN_NODE_VALKEY_URL"}
    assert not given_as_file & set(environment)
    script = ["sh", str(DOCKER / "secrets.sh"), str(tmp_path / "secrets")]
    subprocess.run(script, check=True, timeout=20)
    files = {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()}
    assert set(files) == set(whole["secrets"])
    assert len(files["secret_key"]) >= 50
    assert len(set(files["secret_key"])) >= 5
    assert given({"DATABASE_URL": files["database_url"], "VALKEY_URL": files["valkey_url"]})
    assert files["postgres_password"] in files["database_url"]
    assert files["valkey_password"] in files["valkey_url"]
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "secrets").iterdir()} == {0o444}
    subprocess.run(script, check=True, timeout=20)
    assert {path.name: path.read_text() for path in (tmp_path / "secrets").iterdir()} == files


def test_nothing_is_published_to_the_world_by_default() -> None:
    for name, one in compose("compose.yaml")["services"].items():
        for port in one.get("ports", []):
            assert re.match(r"\$\{\w+:-127\.0\.0\.1\}:", port), (name, port)


def test_every_variable_has_a_default_or_is_in_the_example() -> None:
    example = set(re.findall(r"^(\w+)=", (DOCKER / "example.env").read_text(), re.MULTILINE))
    for name in COMPOSE[:2]:
        for variable, operator in re.findall(r"(?<!\$)\$\{(\w+)(:[-?])?", (DOCKER / name).read_text()):
            assert operator == ":-" or variable in example, f"{name}: {variable}"


def test_a_compose_file_with_a_mistake_does_not_fit(tmp_path: Path) -> None:
    """The check above can fail: it knows the words of a service."""
    wrong = tmp_path / "compose.yaml"
    wrong.write_text((DOCKER / "compose.yaml").read_text().replace("restart:", "restarts:", 1))
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", wrong],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 1
    assert "restarts" in done.stdout
