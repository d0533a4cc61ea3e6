"""What opens something does not stand in the log: links for joining and for new passwords."""

import json
import logging
from typing import Any
from urllib.parse import quote

import pytest
from django.test import Client
from django.urls import reverse

from tests.site.house import House
from webapp.accounts import services
from webapp.accounts.models import Role
from webapp.common.logs import logging_config, without_tokens


def written(records: list[logging.LogRecord]) -> str:
    """The lines that the site's handler writes of `records`, in production and elsewhere."""
    lines = []
    for json_lines in (True, False):
        formatters = logging_config(json_lines=json_lines, level="INFO")["formatters"]
        settings = dict(formatters["line"])
        formatter = settings.pop("()")(**settings)
        lines += [formatter.format(logging.makeLogRecord(record.__dict__)) for record in records]
    return "\n".join(lines)


def links(house: House) -> tuple[str, str]:
    admin = house.users["admin"]
    _, token = services.invite(admin, house.team, email="new@example.org", role=Role.VIEWER)
    uid, reset = services.make_reset_link(admin, house.users["viewer"])
    return (
        reverse("accounts:invitation-accept", args=[token]),
        reverse("accounts:password-set", args=[uid, reset]),
    )


def test_no_token_stands_in_the_log(house: House, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    addresses = links(house)
    for address in addresses:
        assert Client().get(address).status_code in (200, 302)
        Client().get("/login/", {"next": address})
        Client().get(address.rstrip("/") + "x/", {"a": 1})  # 404, which Django logs by itself
    tokens = [address.strip("/").rpartition("/")[2] for address in addresses]
    raw = "\n".join(str(record.msg) + str(record.args) for record in caplog.records)
    assert any(token in raw for token in tokens), "nothing was logged: this test shows nothing"
    lines = written(caplog.records)
    assert "/join/…" in lines
    for token in tokens:
        assert token not in lines
        assert token[:12] not in lines


@pytest.mark.parametrize("encode", [str, lambda text: quote(text, safe="")])
def test_tokens_are_taken_out_wherever_they_stand(house: House, encode: Any) -> None:
    for address in links(house):
        token = address.strip("/").rpartition("/")[2]
        event = {
            "event": f"Not Found: {encode(address)}",
            "request": f"GET {encode(address)}?x=1",
            "code": 404,
        }
        event_out = without_tokens(None, "info", event)
        assert token not in json.dumps(event_out)
        assert event_out["code"] == 404


def test_other_addresses_stay_as_they_are() -> None:
    for path in (
        "/api/v1/nodes/join/",
        "/nodes/3/join-command/",
        "/password/sent/",
        "/runs/12/?q=join",
        "/join",
    ):
        event = {"event": "request_finished", "request": f"GET {path}"}
        assert without_tokens(None, "info", dict(event)) == event
