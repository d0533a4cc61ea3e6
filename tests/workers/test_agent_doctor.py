"""The doctor and a starting agent against a real broker: rights, versions, clock."""

import hashlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from engine import __version__
from engine.errors import InputError
from webapp.servers import EmbeddedServers
from webapp.servers.acl import set_node_user
from workers.agent import connect
from workers.config import from_environment
from workers.doctor import examine
from workers.join import write_environment
from workers.version import refuse_skew


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedServers]:
    with tempfile.TemporaryDirectory(prefix="meridian-test-") as folder:
        Path(folder).chmod(0o755)
        with EmbeddedServers(Path(folder), ("valkey",)) as servers:
            yield servers


@pytest.fixture
def environment(broker: EmbeddedServers, tmp_path: Path) -> dict[str, str]:
    with redis.Redis.from_url(broker.servers[0].url) as admin:
        set_node_user(admin, "a", hashlib.sha256(b"pw").hexdigest())
        admin.set("node:a:site", json.dumps({"version": __version__}))
    made = {
        "MERIDIAN_NODE": "a", "MERIDIAN_BROKER_URL": f"redis://node-a:pw@127.0.0.1:{broker.servers[0].port}/0",
        "MERIDIAN_NODE_GPUS": "2", "MERIDIAN_NODE_DEVICE": "cpu", "MERIDIAN_NODE_HOST": "127.0.0.1",
        "MERIDIAN_NODE_PORTS": "23100-23109",
    }  # fmt: skip
    write_environment(tmp_path, made)
    return made


def level(folder: Path, check: str) -> Any:
    return next(line for line in examine(folder, "a", None) if line.check == check)


def test_a_sound_node_is_told_so(environment: dict[str, str], tmp_path: Path) -> None:
    found = {line.check: line for line in examine(tmp_path, "a", None)}
    for check in ("broker", "broker rights", "version", "clock", "ports", "devices"):
        assert found[check].level == "ok", found[check]


def test_rights_that_are_too_wide_or_too_narrow_fail(
    environment: dict[str, str], broker: EmbeddedServers, tmp_path: Path
) -> None:
    with redis.Redis.from_url(broker.servers[0].url) as admin:
        admin.execute_command("ACL", "SETUSER", "node-a", "~*")
        assert level(tmp_path, "broker rights").level == "fail"
        set_node_user(admin, "a", hashlib.sha256(b"pw").hexdigest())
        admin.execute_command("ACL", "SETUSER", "node-a", "-xlen")
        assert "lacks rights" in level(tmp_path, "broker rights").found
        set_node_user(admin, "a", hashlib.sha256(b"other").hexdigest())
        assert "join again" in level(tmp_path, "broker").todo


def test_an_agent_does_not_start_beside_another_version(
    environment: dict[str, str], broker: EmbeddedServers, tmp_path: Path
) -> None:
    config = from_environment(environment)
    refuse_skew(config, connect)
    with redis.Redis.from_url(broker.servers[0].url) as admin:
        admin.set(config.site_key, json.dumps({"version": "9.9.0"}))
        with pytest.raises(InputError, match=r"meridian\[node\]==9\.9"):
            refuse_skew(config, connect)
        assert level(tmp_path, "version").level == "fail"
        for unreadable in ("", "x", "[]", "{}"):
            admin.set(config.site_key, unreadable)
            refuse_skew(config, connect)


def test_a_broker_that_is_away_keeps_no_agent_from_starting(environment: dict[str, str]) -> None:
    refuse_skew(
        from_environment({**environment, "MERIDIAN_BROKER_URL": "redis://node-a:pw@127.0.0.1:1/0"}), connect
    )
