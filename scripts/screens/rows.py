"""What is in the databases of the sites: `python -m scripts.screens.rows COMMAND`, a process with Django.

`empty`, `full`, `cases` fill the database of this environment, `sell` lets the prefill coordinators of the
latter say what they did just now; `pages` and `paths` print addresses as JSON.
"""

import json
import sys
from typing import Any

import django

ROWS = 1000


def make(state: str) -> dict[str, Any]:
    from scripts.screens import staged
    from tests.demo.browser import PASSWORD
    from tests.site import many, world
    from webapp.accounts.models import Role, Team, User

    if state == "empty":
        world.make_user("admin", Team.objects.create(name="Research"), Role.ADMIN)
    else:
        people = world.make_world()
        many.beat_on(people)
        many.fill(people, range(ROWS)) if state == "full" else staged.stage(people)
    for user in User.objects.filter(username__in=("admin", "operator", "viewer", "tenant")):
        user.set_password(PASSWORD)
        user.save()
    return {}


def pages() -> dict[str, str]:
    """URL name → address of every page of this environment's site; downloads and data are left out."""
    from django.urls import reverse

    from tests.site.addresses import addresses, world_of_database

    world = world_of_database()
    client = world.client("admin")
    paths = {"login": reverse("login")}  # who is logged in is sent on
    for name, url in addresses(world).items():
        answer = client.get(url, HTTP_HOST="127.0.0.1")
        html = answer["Content-Type"].startswith("text/html") and not answer.streaming
        if answer.status_code == 200 and html and b"<html" in answer.content[:200]:  # fragments are no pages
            paths[name] = url
    return paths


def main(command: str) -> None:
    django.setup()
    if command == "pages":
        answer = pages()
    elif command == "paths":
        from scripts.screens import staged

        answer = staged.paths()
    elif command == "sell":
        from scripts.screens import staged_prefill

        answer = staged_prefill.sell()
    else:
        answer = make(command)
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
