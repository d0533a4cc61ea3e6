"""Write the locks: exact versions with the hashes of their files, for every platform. Run by `make lock`.

    requirements.lock   everything that `make setup` installs
    docker/site.lock    the image of the site; docker/node.lock: that of a node

The versions are those that .venv holds. The hashes are those of every file of that version on the package
index that pip is configured to use, and pip itself reads that index. torch is not locked here: its builds for
CPUs and for CUDA have one version and come from different indexes (docs/deploy.md).
"""

import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import (
    InvalidSdistFilename,
    InvalidWheelFilename,
    canonicalize_name,
    parse_sdist_filename,
    parse_wheel_filename,
)
from packaging.version import Version
from pip._internal.commands import create_command
from pip._internal.index.collector import LinkCollector, parse_links
from pip._internal.models.link import Link

ROOT = Path(__file__).resolve().parents[1]
LOCKS = {"requirements.lock": "dev", "docker/site.lock": "server", "docker/node.lock": "node"}
UNLOCKED = "torch"
# The oldest and the newest patch of each Python, since a marker may name one: redis wants more before 3.11.3.
PYTHONS = ("3.11.0", "3.11.99", "3.12.0", "3.13.0", "3.14.0")
MACHINES = (("Linux", "linux", "x86_64"), ("Linux", "linux", "aarch64"), ("Darwin", "darwin", "arm64"))
HEAD = """\
# Exact versions, and the SHA-256 of each of their files on the package index: for every platform.
# Written by `make lock`. torch is not among them: see docs/deploy.md.
"""


def environments() -> Iterator[dict[str, str]]:
    """The markers of every platform that the locks are for."""
    for python in PYTHONS:
        for system, platform, machine in MACHINES:
            yield {
                "python_version": python.rpartition(".")[0],
                "python_full_version": python,
                "platform_system": system,
                "sys_platform": platform,
                "platform_machine": machine,
                "os_name": "posix",
                "implementation_name": "cpython",
                "platform_python_implementation": "CPython",
            }


def needed(extra: str) -> set[str]:
    """The names of all that the project needs with one of its extras, on any platform; its build needs too.

    It walks what installed packages say that they need. What is not installed is needed, and not walked.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    own = project["project"]
    names = {canonicalize_name(Requirement(line).name) for line in project["build-system"]["requires"]}
    for environment in environments():
        seen: set[tuple[str, str]] = set()
        waiting = [(own["name"], ""), (own["name"], extra)]
        while waiting:
            name, extra_of = one = waiting.pop()
            if one in seen:
                continue
            seen.add(one)
            if name == own["name"]:
                lines = own["optional-dependencies"][extra_of] if extra_of else own["dependencies"]
            else:
                names.add(name)
                lines = _requires(name)
            for requirement in map(Requirement, lines):
                if requirement.marker and not requirement.marker.evaluate(environment | {"extra": extra_of}):
                    continue
                of = canonicalize_name(requirement.name)
                waiting += [(of, ""), *((of, each) for each in requirement.extras)]
    return names - {UNLOCKED}


def _requires(name: str) -> Iterable[str]:
    try:
        return requires(name) or ()
    except PackageNotFoundError:
        return ()


class Index:
    """The package indexes that pip is configured to use."""

    def __init__(self) -> None:
        command = create_command("download")
        options, _ = command.parse_args([])
        self._collector = LinkCollector.create(command._build_session(options), options=options)

    def files(self, name: str) -> dict[Version, set[str]]:
        """The versions of a package, with the SHA-256 of each of their files."""
        hashes: dict[Version, set[str]] = {}
        for address in self._collector.search_scope.get_index_urls_locations(name):
            page = self._collector.fetch_response(Link(address))
            for link in parse_links(page) if page else ():
                version = _version(link.filename)
                if version and link.hash and link.hash_name == "sha256":
                    hashes.setdefault(version, set()).add(link.hash)
        return hashes


def _version(filename: str) -> Version | None:
    """The version that a file's name gives, or None where it is no wheel and no source distribution."""
    try:
        if filename.endswith(".whl"):
            return parse_wheel_filename(filename)[1]
        return parse_sdist_filename(filename)[1]
    except (InvalidWheelFilename, InvalidSdistFilename):
        return None


def installed() -> dict[str, str]:
    """The versions of all packages of .venv, by name as pip writes it."""
    pip = [sys.executable, "-m", "pip", "freeze", "--all", "--exclude-editable"]
    lines = subprocess.run(pip, capture_output=True, text=True, check=True).stdout.split()
    return dict(line.split("==") for line in lines if "==" in line)


def entry(name: str, version: str | None, files: dict[Version, set[str]]) -> str:
    """The lines of one package. Raises SystemExit where the index has no file of it.

    version : None takes the newest release: what another Python than this one needs is not in .venv.
    """
    of = Version(version) if version else max(each for each in files if not each.is_prerelease)
    if not files.get(of):
        raise SystemExit(f"{name}=={of}: no package index that pip uses gives a file of it with a SHA-256")
    return " \\\n    ".join([f"{name}=={of}", *(f"--hash=sha256:{each}" for each in sorted(files[of]))])


def main() -> int:
    """Write all locks."""
    versions = {canonicalize_name(name): (name, version) for name, version in installed().items()}
    names = {path: needed(extra) for path, extra in LOCKS.items()}
    index = Index()
    entries: dict[str, str] = {}
    for canonical in sorted(set().union(*names.values())):
        name, version = versions.get(canonical, (canonical, None))
        entries[canonical] = entry(name, version, index.files(name))
    for path, of_path in names.items():
        (ROOT / path).write_text(HEAD + "".join(f"{entries[name]}\n" for name in sorted(of_path)))
        print(f"{path}: {len(of_path)} packages")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
