"""One part of the site as a process of its own: what it becomes, its secrets from files, how it is probed."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from engine.errors import InputError
from webapp.supervisor import probe
from webapp.supervisor.given_files import SECRET, with_files_read
from webapp.supervisor.one import _commands
from webapp.supervisor.services import site_services

ROOT = Path(__file__).resolve().parents[2]


def one(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "webapp.supervisor.one", *arguments],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", SECRET)
def test_a_secret_comes_from_its_file_and_the_file_is_not_handed_on(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret").write_text("of value\n")
    environment = with_files_read({f"{name}_FILE": str(tmp_path / "secret"), "HOME": "/"})
    assert environment == {name: "of value", "HOME": "/"}


def test_a_file_that_cannot_be_used_is_named_and_its_content_never(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    for content, extra, words in (
        (None, {}, "can be read"),
        ("", {}, "not empty"),
        ("hush", {"DATABASE_URL": "postgresql://x/y"}, "together with DATABASE_URL"),
    ):
        if content is not None:
            path.write_text(content)
        with pytest.raises(InputError, match=words) as caught:
            with_files_read({"DATABASE_URL_FILE": str(path), **extra})
        assert "DATABASE_URL_FILE" in str(caught.value)
        assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "variables", "words"),
    [
        (["dance"], {}, ("PART", "dance", "web")),
        ([], {}, ("PART", "web")),
        (["web", "extra"], {}, ("PART", "web extra")),
        (["web"], {"MERIDIAN_PORT": "x"}, ("MERIDIAN_PORT", "1 to 65535")),
        (["web"], {"DATABASE_URL": "mysql://user:hush@host/x"}, ("DATABASE_URL", "postgresql://")),
    ],
)
def test_what_cannot_be_is_one_line(
    arguments: list[str], variables: dict[str, str], words: tuple[str, ...]
) -> None:
    done = one(*arguments, **variables)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert "hush" not in done.stderr


def test_manage_gets_its_arguments_and_a_secret_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 60)
    print_key = "from django.conf import settings; print(settings.SECRET_KEY)"
    done = one("manage", "shell", "-v", "0", "-c", print_key, MERIDIAN_SECRET_KEY_FILE=str(tmp_path / "key"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "k" * 60


def test_a_part_is_what_the_supervisor_starts() -> None:
    environ = {"MERIDIAN_BIND": "0.0.0.0", "MERIDIAN_PORT": "8123"}
    for service in site_services(8123, ROOT / "var", host="0.0.0.0"):
        ((argv, env),) = _commands(service.name, [], environ)
        assert argv[3:] == service.argv[3:] or service.name == "beat"
        assert env.keys() == service.env.keys()


@pytest.fixture
def answering() -> Iterator[Any]:
    """A site on a port: `status` is what it answers, `hosts` whom it was asked for."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            server.hosts.append(self.headers["Host"])
            self.send_response(server.status if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None: ...

    server: Any = HTTPServer(("127.0.0.1", 0), Handler)
    server.status, server.hosts = 200, []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_the_probe_asks_for_a_host_that_the_site_answers_to(
    answering: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MERIDIAN_PORT", str(answering.server_port))
    for hosts, host in (
        ("a.example,b.example", "a.example"),
        (".example.org", "www.example.org"),
        ("*", "127.0.0.1"),
    ):
        monkeypatch.setenv("MERIDIAN_HOSTS", hosts)
        assert probe.main([]) == 0
        assert answering.hosts[-1] == host
    answering.status = 503
    assert probe.main(["web"]) == 1
    assert "503" in capsys.readouterr().out


def test_the_probe_of_a_part_that_beats(
    transactional_db: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from datetime import timedelta
    from urllib.parse import urlsplit, urlunsplit

    from django.db import connection
    from django.utils import timezone

    from webapp.computations import liveness
    from webapp.computations.models import Beat

    parts = urlsplit(os.environ["DATABASE_URL"])
    url = urlunsplit(parts._replace(path="/" + str(connection.settings_dict["NAME"])))
    monkeypatch.setenv("DATABASE_URL", url)
    # The names of the beats are the site's: the probe knows them without Django.
    assert {name for name, _ in probe.BEATS.values()} == {
        liveness.INGEST,
        liveness.RECONCILER,
        liveness.SEARCH,
    }
    assert probe.main(["ingest"]) == 1
    assert "not started" in capsys.readouterr().out
    liveness.beat(liveness.INGEST)
    assert probe.main(["ingest"]) == 0
    assert probe.main(["control"]) == 1
    Beat.objects.update(at=timezone.now() - timedelta(seconds=40))
    assert probe.main(["ingest"]) == 1
    assert "silent for 40 s" in capsys.readouterr().out
    monkeypatch.setenv("DATABASE_URL", "postgresql://meridian:hush@127.0.0.1:1/none")
    assert probe.main(["ingest"]) == 1
    assert "hush" not in capsys.readouterr().out
