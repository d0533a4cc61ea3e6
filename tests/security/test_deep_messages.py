"""JSON that is nested too deeply, too long or no text, wherever the site and its machines read it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from django.test import Client

from engine.documents import read_json_file
from engine.errors import InputError
from engine.job.checkpoint.manifest import Torn
from engine.job.launch import LaunchSpec
from webapp.common import broker

DEEP = "[" * 100_000
JOIN = "/api/v1/nodes/join/"
LIMIT_S = 60.0


def _join(body: bytes | str) -> Any:
    for key in broker.client().scan_iter("control:uses:*"):
        broker.client().delete(key)
    return Client().post(JOIN, body, content_type="application/json")


@pytest.mark.usefixtures("db")
@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (DEEP, "nested too deeply"),
        ('{"a":' * 40_000, "nested too deeply"),
        (b"\xff\xfe", "not JSON"),
        ("token: mj-x", "not JSON"),
        ('{"token": "\\ud800"}', "surrogate"),
        ('{"token": "mj-x", "host": "\\u0000"}', "NUL"),
        ('{"token": 1, "token": 2}', "given twice"),
        ("[" + "[]," * 50_000 + "[]]", "object"),
        ("1" * 5_000, "digits"),
    ],
    ids=lambda value: str(value[:12]),
)
def test_the_join_address_refuses_with_its_own_answer(body: Any, reason: str) -> None:
    answer = _join(body)
    assert answer.status_code == 422
    assert reason in answer.json()["reason"]


@pytest.mark.usefixtures("db")
def test_the_join_address_takes_few_bytes() -> None:
    assert _join(" " * (256 * 1024 + 1)).status_code == 413


@pytest.mark.django_db(transaction=True)
async def test_a_socket_ignores_what_it_cannot_read() -> None:
    from asgiref.sync import sync_to_async

    from tests.site.telemetry import placed
    from tests.site.world import make_world
    from webapp.live.consumers import RunConsumer

    world = await sync_to_async(make_world)()
    run = await sync_to_async(placed)(world)
    scope = {"type": "websocket", "user": world.users["viewer"], "url_route": {"kwargs": {"run_id": run.pk}}}
    browser = ApplicationCommunicator(RunConsumer.as_asgi(), scope)
    await browser.send_input({"type": "websocket.connect"})
    assert (await browser.receive_output(LIMIT_S))["type"] == "websocket.accept"
    assert json.loads((await browser.receive_output(LIMIT_S))["text"])["type"] == "snapshot"
    for message in ({"text": DEEP}, {"bytes": b"\x00"}, {"text": ""}, {"text": "1" * 5_000}, {"text": "[]"}):
        await browser.send_input({"type": "websocket.receive", **message})
    await browser.send_input({"type": "websocket.receive", "text": '{"type": "resync"}'})
    assert json.loads((await browser.receive_output(LIMIT_S))["text"])["type"] == "snapshot"
    await browser.send_input({"type": "websocket.disconnect", "code": 1000})
    await browser.wait(LIMIT_S)


def test_a_launch_spec_is_refused_as_one() -> None:
    for text in (DEEP, "[]", "{}", "1" * 5_000, '{"job": {}, "ranks": 1}'):
        with pytest.raises(InputError):
            LaunchSpec.from_json(text)


def test_files_of_a_machine_are_refused_as_unreadable(tmp_path: Path) -> None:
    from engine.job.checkpoint.manifest import MANIFEST, find
    from engine.job.prefill.config import read_config
    from workers.ledger import Ledger

    (tmp_path / "ledger.json").write_text(DEEP)
    assert Ledger(tmp_path / "ledger.json").unfinished() == []
    (tmp_path / "config.json").write_text(DEEP)
    with pytest.raises(InputError, match="not JSON"):
        read_config(tmp_path)
    saved = tmp_path / "run-1-step-00000001"
    saved.mkdir()
    (saved / MANIFEST).write_text(DEEP)
    with pytest.raises(Torn, match="corrupt"):
        find(str(saved))


def test_an_answer_that_does_not_end_is_not_read_to_its_end() -> None:
    class Endless(io.RawIOBase):
        given = 0

        def read(self, size: int = -1) -> bytes:
            assert size > 0, "all of it was asked for"
            self.given += size
            return b" " * size

    endless = Endless()
    with pytest.raises(ValueError, match="more than 1,000 bytes"):
        read_json_file(endless, most_bytes=1_000)  # type: ignore[arg-type]
    assert endless.given == 1_001
