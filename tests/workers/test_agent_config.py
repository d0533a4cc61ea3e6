"""The agent's environment: each wrong value is named, and no password is shown."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import InputError
from workers.config import from_environment

GOOD = {
    "MERIDIAN_NODE": "a-1",
    "MERIDIAN_BROKER_URL": "valkey://node-a-1:hidden@broker:6379/0",
    "MERIDIAN_NODE_GPUS": "8",
    "MERIDIAN_NODE_DEVICE": "emulated",
    "MERIDIAN_NODE_HOST": "10.0.0.1",
    "MERIDIAN_VAR": "/srv/var",
}


def test_a_whole_environment() -> None:
    config = from_environment(GOOD)
    assert config.broker_url == "redis://node-a-1:hidden@broker:6379/0"
    assert (config.prefix, config.queue, config.stream) == ("node:a-1:", "node.a-1", "node:a-1:events")
    assert config.state_folder == Path("/srv/var/agents/a-1")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, None) for name in GOOD if name != "MERIDIAN_VAR"),
        *(("MERIDIAN_NODE", v) for v in ("A", "a:b", "a b", "-a", "x" * 41, "ä")),
        *(
            ("MERIDIAN_BROKER_URL", v)
            for v in ("http://u:hidden@h", "redis://h", "redis://u@h", "redis://:hidden@h")
        ),
        *(("MERIDIAN_NODE_GPUS", v) for v in ("0", "-1", "1.5", "many", "1025")),
        ("MERIDIAN_NODE_DEVICE", "tpu"),
        ("MERIDIAN_SPOOL_MB", "0"),
        *(("MERIDIAN_NODE_HOST", v) for v in ("10.0.0.999", "a b", "node_1")),
    ],
)
def test_each_wrong_value_is_named(name: str, value: str | None) -> None:
    environ = {key: text for key, text in {**GOOD, name: value}.items() if text is not None}
    with pytest.raises(InputError) as caught:
        from_environment(environ)
    assert caught.value.field == name
    assert "hidden" not in str(caught.value)


def test_the_agent_says_it_in_one_line_and_ends_with_2() -> None:
    environ = {key: text for key, text in os.environ.items() if not key.startswith("MERIDIAN_")}
    done = subprocess.run(
        [sys.executable, "-m", "workers.agent"],
        cwd=Path(__file__).resolve().parents[2],
        env=environ,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("meridian agent: MERIDIAN_NODE")
    assert done.stderr.count("\n") == 1
