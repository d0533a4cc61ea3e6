"""A folder that stands for an image's file system, in which lines of a Dockerfile are executed; needs root.

The line runs under chroot in a mount namespace of its own: the folder holds what the Dockerfile makes
(/opt, /srv, /var, /usr/local with a Python of its own, a copy of /etc); the rest of /usr, /dev and /proc are
this machine's. So a RUN line that needs a Debian package is tried against this machine's packages, not
python-slim's.
"""

import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pathspec

FOLDERS = (
    "dev",
    "home",
    "opt",
    "proc",
    "root",
    "run/secrets",
    "srv",
    "tmp",
    "usr",
    "var/lib",
    "var/tmp",
    "data",
)
LINKS = ("bin", "lib", "lib64", "sbin")


class Room:
    """One stage's file system.

    Parameters
    ----------
    place : the folder on this machine; `root` and `local` (its /usr/local) are made in it.
    shown : folders of this machine that lines see as they are: a package index on disk.
    """

    def __init__(self, place: Path, shown: Sequence[Path] = ()) -> None:
        self.root = place / "root"
        self.local = place / "local"
        self._shown = tuple(shown)

    def furnish(self, python: Path) -> None:
        """As `FROM python:…-slim`: a Debian's folders, and the Python of a prefix in /usr/local."""
        for folder in FOLDERS:
            (self.root / folder).mkdir(parents=True, exist_ok=True)
        (self.root / "tmp").chmod(0o1777)
        for link in LINKS:
            (self.root / link).symlink_to(f"usr/{link}")
        shutil.copytree("/etc", self.root / "etc", symlinks=True, ignore_dangling_symlinks=True)
        heavy = shutil.ignore_patterns("test", "__pycache__", "site-packages", "*.a")
        shutil.copytree(python, self.local, symlinks=True, ignore=heavy)
        (packages,) = self.local.glob("lib/python3.*/")
        for package in ("pip", "pip-*"):
            for installed in next(python.glob("lib/python3.*/site-packages")).glob(package):
                shutil.copytree(installed, packages / "site-packages" / installed.name, ignore=heavy)

        # A Python with a shared library is found through the linker's cache, as in the official images.
        cache = self.start(["/sbin/ldconfig"], env={}, folder="/")
        cache.communicate(timeout=60)

    def copy_of(self, other: "Room") -> None:
        """As `FROM` a stage: everything that the other holds."""
        for mine, theirs in ((self.root, other.root), (self.local, other.local)):
            mine.parent.mkdir(parents=True, exist_ok=True)
            subprocess.run(["cp", "-a", "--reflink=auto", theirs, mine], check=True)

    def inside(self, path: str) -> Path:
        """Where the image's absolute `path` lies on this machine."""
        if path == "/usr/local" or path.startswith("/usr/local/"):
            return self.local / path.removeprefix("/usr/local").lstrip("/")
        return self.root / path.lstrip("/")

    def copy_in(self, source: Path, target: str, *, owner: tuple[int, int] | None, into: bool) -> None:
        """As `COPY`: a folder's content into `target`; a file to `target`, or `into` it."""
        to = self.inside(target)
        if source.is_dir():
            shutil.copytree(source, to, symlinks=True, dirs_exist_ok=True)
        else:
            to = to / source.name if into else to
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, to)
        if owner:
            subprocess.run(["chown", "-R", "{}:{}".format(*owner), to], check=True)

    def numbers_of(self, user: str) -> tuple[int, int]:
        """uid and gid of `user` or `user:group`, by name as /etc of the image knows them, or as numbers."""
        name, _, group = user.partition(":")
        if name.isdecimal():
            return int(name), int(group or 0)
        for line in (self.root / "etc/passwd").read_text().splitlines():
            entry = line.split(":")
            if entry[0] == name:
                return int(entry[2]), int(entry[3])
        raise KeyError(f"the image has no user {user}")

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], folder: str, user: str = "root"
    ) -> "subprocess.Popen[str]":
        """Run `argv` in here; standard output and error come together through the pipe of the process."""
        at = shlex.quote(str(self.root))
        lines = [
            f"mount --bind /usr {at}/usr",
            f"mount --bind {shlex.quote(str(self.local))} {at}/usr/local",
            f"mount --rbind /dev {at}/dev",
            f"mount --rbind /proc {at}/proc",
        ]
        for shown in map(str, self._shown):
            lines += [f"mkdir -p {at}{shown}", f"mount --bind {shown} {at}{shown}"]
        uid, gid = self.numbers_of(user)
        words = [
            "exec",
            "chroot",
            f"--userspec={uid}:{gid}",
            "--groups=",
            str(self.root),
            "/usr/bin/env",
            "-i",
        ]
        words += [f"{name}={value}" for name, value in env.items()]
        words += ["/bin/sh", "-c", 'cd "$0" && exec "$@"', folder, *argv]
        lines.append(shlex.join(words))
        return subprocess.Popen(
            ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-ec", "\n".join(lines)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def context_files(context: Path, source: str, copies: Path) -> Path:
    """A copy, below `copies`, of what `COPY source` takes from the context: without what .dockerignore names.

    Raises
    ------
    FileNotFoundError
        Nothing is left: a Docker build would fail there.
    """
    lines = (context / ".dockerignore").read_text().splitlines()
    ignored = pathspec.PathSpec.from_lines("gitignore", map(_anchored, lines))
    wanted = context / source
    files = [wanted] if wanted.is_file() else [path for path in wanted.rglob("*") if path.is_file()]
    included = [path for path in files if not _left_out(ignored, path.relative_to(context))]
    if not included:
        raise FileNotFoundError(f"COPY {source}: nothing of that name is in the build context")
    copy = copies / "context"
    shutil.rmtree(copy, ignore_errors=True)
    for path in included:
        to = copy / path.relative_to(context)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, to)
    return copy / source


def _anchored(line: str) -> str:
    text = line.strip()
    if not text or text.startswith(("#", "**")):
        return text
    negated, name = ("!", text[1:]) if text.startswith("!") else ("", text)
    return f"{negated}/{name.lstrip('/')}"


def _left_out(ignored: pathspec.PathSpec, path: Path) -> bool:
    """Whether .dockerignore leaves `path` out: the last pattern that fits it, or a folder above it, decides.

    Docker matches whole paths where git matches names at any depth: a pattern without `**` is anchored.
    """
    verdict = False
    names = [str(path), *(str(parent) for parent in path.parents if str(parent) != ".")]
    for pattern in ignored.patterns:
        if pattern.include is not None and any(pattern.match_file(name) for name in names):
            verdict = pattern.include
    return verdict
