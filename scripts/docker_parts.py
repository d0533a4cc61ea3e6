"""Runs the images of docker/ as their compose files say; used by scripts.docker_lines."""

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import redis
import yaml

from scripts.docker_build import ROOT, Image, LineFailed, say
from tests.ports import free_port
from webapp.servers import running
from webapp.servers.acl import set_node_user
from webapp.servers.places import packaged_binaries

WELL_WITHIN_S = 120
NODE = "lines"


def compose(path: str, values: Mapping[str, str]) -> dict[str, Any]:
    """A compose file with ${NAME}, ${NAME:-default} and ${NAME:?why} replaced and $$ undone."""

    def value(match: re.Match[str]) -> str:
        name, default = match[1], match[3] if match[2] == ":-" else None
        if name not in values and default is None:
            raise LineFailed(f"{path}: {name} is not set")
        return values.get(name, default or "")

    text = re.sub(r"(?<!\$)\$\{(\w+)(?:(:[-?])([^}]*))?\}", value, (ROOT / path).read_text())
    document = yaml.safe_load(text.replace("$$", "$"))
    assert isinstance(document, dict)
    return document


@contextlib.contextmanager
def part(
    name: str, image: Image, env: Mapping[str, str], argv: list[str], probe: list[str], grace_s: float
) -> Iterator[Callable[[], None]]:
    """One container: started, and stopped by SIGTERM within its grace; yields what waits until it is well."""
    began = time.monotonic()
    process = image.start([*image.entrypoint, *argv], env)
    output: list[str] = []
    reader = threading.Thread(target=lambda: output.extend(process.stdout or ()), daemon=True)
    reader.start()

    def well() -> None:
        _until_well(name, image, env, probe, process, output)
        line = f"{name}: {' '.join([*image.entrypoint, *argv])}; health: {' '.join(probe)}"
        say(line, 0, time.monotonic() - began)

    try:
        yield well
        _stop(name, process, grace_s, output)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _stop(name: str, process: "subprocess.Popen[str]", grace_s: float, output: list[str]) -> None:
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    try:
        status = process.wait(grace_s)
    except subprocess.TimeoutExpired:
        status = 124
    # 143 and -15: ended by the signal itself, as uvicorn does once it is done.
    took_s = time.monotonic() - began
    say(f"{name}: SIGTERM", 0 if status in (0, 143, -15) else status, took_s, "".join(output))


def _until_well(
    name: str, image: Image, env: Mapping[str, str], probe: list[str], process: Any, output: list[str]
) -> None:
    deadline = time.monotonic() + WELL_WITHIN_S
    output_of_probe = ""
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise LineFailed(f"{name} ended with status {process.returncode}\n{''.join(output)[-3000:]}")
        probing = image.start(probe, env)
        output_of_probe, _ = probing.communicate(timeout=60)
        if probing.returncode == 0:
            return
        time.sleep(1)
    raise LineFailed(f"{name} is not well: {output_of_probe}\n{''.join(output)[-3000:]}")


def site(image: Image, place: Path) -> None:
    """migrate, then web, control, beat and ingest, with the secrets and settings of docker/compose.yaml."""
    port = free_port()
    with _servers(place) as (database, valkey):
        secrets = place / "secrets"
        done = subprocess.run(
            ["sh", ROOT / "docker/secrets.sh", secrets], capture_output=True, text=True, check=False
        )
        say("docker/secrets.sh", done.returncode, 0.0, done.stderr)
        for name, url in (("database_url", database), ("valkey_url", valkey)):
            (secrets / name).unlink()
            (secrets / name).write_text(url)
        for path in secrets.iterdir():
            image.room.copy_in(path, "/run/secrets/", owner=None, into=True)
        values = {
            "MERIDIAN_HOSTS": "meridian.example.org",
            "MERIDIAN_PROXY_IPS": "127.0.0.1",
            "MERIDIAN_NODE_VALKEY_URL": "redis://10.0.0.5:6379/0",
        }
        services = compose("docker/compose.yaml", values)["services"]
        # One network for all of them here: another port than the image's own, and this machine only.
        here = {"MERIDIAN_PORT": str(port), "MERIDIAN_BIND": "127.0.0.1"}
        env = {**services["web"]["environment"], **here}
        _migrate(image, env, services["migrate"]["command"])
        with contextlib.ExitStack() as parts:
            waits = []
            for name in ("web", "control", "search", "beat", "ingest"):
                one = services[name]
                probe = one["healthcheck"]["test"][1:] if "healthcheck" in one else list(image.probe)
                grace_s = float(one["stop_grace_period"].removesuffix("s"))
                waits.append(parts.enter_context(part(name, image, env, one["command"], probe, grace_s)))
            for well in waits:  # control and beat are well together only
                well()
            _ask(port)


def _migrate(image: Image, env: Mapping[str, str], command: list[str]) -> None:
    began = time.monotonic()
    process = image.start([*image.entrypoint, *command], env)
    output, _ = process.communicate(timeout=300)
    say(
        "migrate: check --deploy, migrate, sync_node_acl",
        process.returncode,
        time.monotonic() - began,
        output,
    )


def _ask(port: int) -> None:
    """The site as a proxy asks for it: ready, the login page with hashed stylesheets, HTTPS wanted."""
    proxied = ["-H", "Host: meridian.example.org", "-H", "X-Forwarded-Proto: https"]
    url = f"http://127.0.0.1:{port}"

    def get(path: str, *headers: str) -> tuple[int, str]:
        done = subprocess.run(
            ["curl", "-s", "-m", "20", "-w", "\n%{http_code}", *headers, url + path],
            capture_output=True,
            text=True,
            check=True,
        )
        body, _, code = done.stdout.rpartition("\n")
        return int(code), body

    deadline = time.monotonic() + WELL_WITHIN_S
    while (answer := get("/readyz", *proxied))[0] != 200 and time.monotonic() < deadline:
        time.sleep(1)
    say(f"web: /readyz {answer[1][:400]}", answer[0] != 200, 0.0, answer[1])
    code, page = get("/login/", *proxied)
    say("web: /login/ over HTTPS", code != 200, 0.0, page)
    sheets = re.findall(r'href="(/static/[^"]+\.css)"', page)
    statuses = {path: get(path, *proxied)[0] for path in sheets}
    hashed = all(re.search(r"\.[0-9a-f]{12}\.css$", path) for path in sheets)
    say(
        f"web: {len(sheets)} hashed stylesheets",
        not (sheets and hashed and set(statuses.values()) == {200}),
        0.0,
        str(statuses),
    )
    say("web: plain HTTP is sent on to HTTPS", get("/login/", *proxied[:2])[0] != 301, 0.0)
    say(
        "web: a strange host is refused",
        get("/login/", "-H", "Host: elsewhere.example", *proxied[2:])[0] != 400,
        0.0,
    )


@contextlib.contextmanager
def _servers(place: Path) -> Iterator[tuple[str, str]]:
    """PostgreSQL as the project embeds it, and a Valkey started by docker/valkey.sh; their URLs."""
    with (
        tempfile.TemporaryDirectory(prefix="lines-", dir="/var/tmp") as var,
        running(Path(var)) as urls,
        _valkey(place) as valkey,
    ):
        yield urls.database_url, valkey


@contextlib.contextmanager
def _valkey(place: Path) -> Iterator[str]:
    """docker/valkey.sh, with stand-ins for the image's own entry, its server and its client."""
    folder = place / "valkey"
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    port, password = free_port(), "of-these-lines-alone"
    stand_ins = {
        "docker-entrypoint.sh": '#!/bin/sh\nexec "$@"\n',
        "valkey-server": f'#!/bin/sh\nexec {packaged_binaries().valkey_server} "$@"\n',
        "valkey-cli": f"#!{sys.executable}\nimport os, redis, sys\n"
        f"one = redis.Redis(port={port}, password=os.environ['REDISCLI_AUTH'])\n"
        "print('PONG' if sys.argv[1:] == ['ping'] and one.ping() else '')\n",
    }
    for name, text in stand_ins.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    (folder / "password").write_text(password)
    env = {
        "PATH": f"{folder}/bin:{os.defpath}",
        "VALKEY_DATA": str(folder),
        "VALKEY_PORT": str(port),
        "VALKEY_PASSWORD_FILE": str(folder / "password"),
    }
    server = subprocess.Popen(
        ["sh", ROOT / "docker/valkey.sh"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    )
    try:
        names = ("MERIDIAN_HOSTS", "MERIDIAN_PROXY_IPS", "MERIDIAN_NODE_VALKEY_URL")
        values = dict.fromkeys(names, "any")
        test = compose("docker/compose.yaml", values)["services"]["valkey"]["healthcheck"]["test"][1]
        line = test.replace("/run/secrets/valkey_password", str(folder / "password"))
        began = time.monotonic()
        while status := subprocess.run(
            ["sh", "-c", line], env=env, check=False, capture_output=True
        ).returncode:
            if time.monotonic() - began > 30:
                break
            time.sleep(0.2)
        say(f"docker/valkey.sh; health: {test}", status, time.monotonic() - began)
        yield f"redis://default:{password}@127.0.0.1:{port}/0"
    finally:
        server.terminate()
        server.wait(15)


def node(image: Image, place: Path) -> None:
    """The agent of a node that has joined, until its heartbeat is in the broker."""
    began = time.monotonic()
    shown = image.start([*image.entrypoint, *image.command])
    output, _ = shown.communicate(timeout=120)
    say(
        f"node: {' '.join([*image.entrypoint, *image.command])}",
        shown.returncode,
        time.monotonic() - began,
        output,
    )
    with _valkey(place) as valkey, redis.Redis.from_url(valkey, decode_responses=True) as client:
        set_node_user(client, NODE, hashlib.sha256(b"of-this-node").hexdigest())
        address = valkey.rpartition("@")[2]
        lines = {
            "MERIDIAN_NODE": NODE,
            "MERIDIAN_BROKER_URL": f"redis://node-{NODE}:of-this-node@{address}",
            "MERIDIAN_NODE_GPUS": "1",
            "MERIDIAN_NODE_DEVICE": "cpu",
            "MERIDIAN_NODE_HOST": "127.0.0.1",
        }
        env_file = image.room.inside(f"/var/lib/meridian/nodes/{NODE}.env")
        env_file.parent.mkdir(parents=True, exist_ok=True)
        env_file.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        subprocess.run(["chown", "-R", image.user, env_file.parent], check=True)
        service = compose("docker/node/compose.yaml", {"MERIDIAN_NODE": NODE})["services"]["node"]
        grace_s = float(service["stop_grace_period"].removesuffix("s"))
        with part("node", image, {}, service["command"], list(image.probe), grace_s) as well:
            well()
            _heartbeat(client)


def _heartbeat(client: "redis.Redis") -> None:
    deadline = time.monotonic() + 30
    events: list[Any] = []
    while not events and time.monotonic() < deadline:
        events = [json.loads(fields["e"]) for _, fields in client.xrange(f"node:{NODE}:events")]
        time.sleep(0.5)
    say(
        "node: a heartbeat in the broker", not any(e["kind"] == "heartbeat" for e in events), 0.0, str(events)
    )


PARTS: dict[str, Callable[[Image, Path], None]] = {"site": site, "node": node}
