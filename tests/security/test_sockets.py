"""WebSockets: an address that is none, and pages of other origins."""

from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from tests.security.served_site import ServedSite, served_site
from tests.waiting import LIMIT_S
from webapp.edge.sockets import of_this_site


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedSite]:
    with served_site(tmp_path_factory.mktemp("sockets")) as address:
        yield address


def status(site: ServedSite, path: str, origin: str | None) -> int:
    """Of a refused handshake."""
    with pytest.raises(InvalidStatus) as refused:
        connect(
            f"ws://127.0.0.1:{site.port}{path}",
            origin=origin,  # type: ignore[arg-type]
            open_timeout=LIMIT_S,
        )
    return refused.value.response.status_code


def test_no_such_socket_is_404_and_no_fault(site: ServedSite) -> None:
    for path in ("/ws/", "/ws/runs/x/", "/ws/runs/1", "/", "/%00", "/v1/completions", "/ws/runs/-1/"):
        assert status(site, path, site.url) == 404, path
    assert "Traceback" not in site.log
    assert httpx.get(f"{site.url}/healthz", timeout=LIMIT_S).status_code == 200


def test_a_page_of_another_origin_opens_no_socket(site: ServedSite) -> None:
    wrong = [
        None,
        f"https://127.0.0.1:{site.port}",
        f"http://127.0.0.1:{site.port + 1}",
        "http://127.0.0.1",
        f"http://localhost:{site.port}",
        f"http://127.0.0.1:{site.port}.evil.example",
        "null",
        "http://[",
    ]
    for origin in wrong:
        assert status(site, "/ws/runs/1/", origin) == 403, origin


def scope(origin: str, host: str, scheme: str = "ws") -> dict[str, Any]:
    return {"scheme": scheme, "headers": [(b"origin", origin.encode()), (b"host", host.encode())]}


@pytest.mark.parametrize(
    ("origin", "host", "scheme", "may"),
    [
        ("http://testserver", "testserver", "ws", True),
        ("http://testserver:80", "testserver", "ws", True),
        ("http://TESTSERVER", "testserver:80", "ws", True),
        ("https://testserver", "testserver", "wss", True),
        ("https://testserver:443", "testserver", "wss", True),
        ("https://testserver", "testserver", "ws", False),
        ("http://testserver", "testserver", "wss", False),
        ("http://testserver:8000", "testserver:8001", "ws", False),
        ("http://evil.example", "evil.example", "ws", False),  # a name that was made to point here
        ("https://site.example.org", "testserver", "ws", True),  # the proxy speaks HTTPS, and keeps no host
        ("https://a.parts.example.org", "testserver", "ws", True),
        ("http://a.parts.example.org", "testserver", "ws", False),
        ("https://a.parts.example.org:1", "testserver", "ws", False),
        ("https://parts.example.org.evil.example", "testserver", "ws", False),
    ],
)
def test_scheme_host_and_port_count(settings: Any, origin: str, host: str, scheme: str, may: bool) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://site.example.org", "https://*.parts.example.org"]
    settings.ALLOWED_HOSTS = ["testserver"]
    assert of_this_site(scope(origin, host, scheme)) == may
