"""The matrix of role and address: what ACCESS and SOCKETS (access.py) say is what the site does."""

from collections.abc import Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import transaction
from django.test import Client
from django.urls import URLPattern, get_resolver, reverse

from tests.site.access import ACCESS, PERSONS, SOCKETS
from tests.waiting import LIMIT_S

DEALT_WITH = {200, 201, 202, 204, 409, 422}
WHERE = "tests/site/access.py"


def url_names(resolver: Any, namespace: str = "") -> Iterator[str]:
    """The full name of every address below `resolver`; one without a name by its pattern, as "?pattern"."""
    for entry in resolver.url_patterns:
        if isinstance(entry, URLPattern):
            yield f"{namespace}{entry.name}" if entry.name else f"?{entry.pattern}"
        else:
            yield from url_names(entry, f"{namespace}{entry.namespace}:" if entry.namespace else namespace)


def test_every_address_has_a_name_and_a_line() -> None:
    names = set(url_names(get_resolver()))
    unnamed = sorted(name for name in names if name.startswith("?"))
    assert not unnamed, f"give these addresses a name in their urls.py: {unnamed}"
    missing = sorted(names - set(ACCESS))
    lines = "\n".join(f'    "{name}": Access(get=…, post=…, args=…),' for name in missing)
    assert not missing, f"say who gets what: add to ACCESS in {WHERE}\n{lines}"
    gone = sorted(set(ACCESS) - names)
    assert not gone, f"take these lines out of ACCESS in {WHERE}, no address has that name: {gone}"


def outcome(response: Any) -> str:
    status = response.status_code
    if status in (301, 302, 303):
        return "login" if response["Location"].startswith("/login/?next=") else "ok"
    return "ok" if status in DEALT_WITH else str(status)


def ask(login: str | None, method: str, url: str, data: Any) -> str:
    """What someone with the session `login` gets; whatever the request changed is undone."""
    client = Client()
    if login is not None:
        client.cookies[settings.SESSION_COOKIE_NAME] = login
    with transaction.atomic():
        response = client.get(url) if method == "get" else client.post(url, data)
        got = outcome(response)
        transaction.set_rollback(True)
    return got


def login(world: Any, person: str) -> str | None:
    """The session of a person; logging in takes as long as a page does."""
    if person == "anonymous":
        return None
    return str(world.client(person).cookies[settings.SESSION_COOKIE_NAME].value)


@pytest.mark.parametrize("name", sorted(set(url_names(get_resolver()))))
def test_everybody_gets_what_the_matrix_says(world: Any, name: str) -> None:
    access = ACCESS.get(name)
    if access is None:
        pytest.fail(f'add to ACCESS in {WHERE}: "{name}": Access(get=…, post=…, args=…),')
    url = reverse(name, kwargs=access.args(world))
    wrong, logins = [], {person: login(world, person) for person in PERSONS}
    for method, wanted in (("get", access.get), ("post", access.post)):
        for person in PERSONS:
            got = ask(logins[person], method, url, access.data)
            # Whoever may not know of the address need not be told of its methods.
            allowed = {"405", "404", "login", "403"} if wanted is None else {wanted[person]}
            if got not in allowed or (wanted is None and person == "admin" and got not in {"405", "404"}):
                wrong.append(
                    f"{method.upper()} {url} by {person}: {got}, {WHERE} says {wanted and wanted[person]}"
                )
    assert not wrong, "\n".join(wrong)


def sockets() -> set[str]:
    from webapp.live.routing import websocket_urlpatterns

    return {str(entry.pattern) for entry in websocket_urlpatterns}


def test_every_socket_has_a_line() -> None:
    assert sockets() == set(SOCKETS), f"SOCKETS in {WHERE} must name exactly the WebSocket addresses"


async def first_answer(world: Any, person: str, path: str) -> str:
    """ "ok" where the socket says something first, "404" where it is closed with 4404."""
    from asgiref.testing import ApplicationCommunicator
    from channels.routing import URLRouter
    from django.contrib.auth.models import AnonymousUser

    from webapp.live.routing import websocket_urlpatterns

    user = AnonymousUser() if person == "anonymous" else world.users[person]
    scope = {"type": "websocket", "path": f"/{path}", "headers": [], "user": user, "subprotocols": []}
    socket = ApplicationCommunicator(URLRouter(websocket_urlpatterns), scope)
    await socket.send_input({"type": "websocket.connect"})
    message = await socket.receive_output(LIMIT_S)
    if message["type"] == "websocket.accept":
        message = await socket.receive_output(LIMIT_S)
    await socket.send_input({"type": "websocket.disconnect", "code": 1000})
    await socket.wait(LIMIT_S)
    return str(message.get("code", 0) % 1000) if message["type"] == "websocket.close" else "ok"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("pattern", sorted(SOCKETS))
async def test_sockets_answer_whom_the_matrix_says(pattern: str) -> None:
    from tests.site.world import make_world

    wanted, path_of = SOCKETS[pattern]
    world = await sync_to_async(make_world)()
    path = await sync_to_async(path_of)(world)
    assert {person: await first_answer(world, person, path) for person in PERSONS} == wanted
