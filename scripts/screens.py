"""Pictures of every page: 1440 and 390 px wide, light and dark, of an empty site, the demo, and a full site.

    python scripts/screens.py [--states empty,demo,full] [--only TEXT] [--out docs/screens]
    python scripts/screens.py --serve full --port 8406      # the same site to look at by hand, until Ctrl-C

Pages come from the URL resolver (through tests/site/access.py, which a test keeps complete). Writes WebP
files and the index between the marks of docs/screens/README.md. Exit status 1 where the console of a page
complained or a page scrolls sideways.
"""

import argparse
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from PIL import Image  # noqa: E402
from playwright.sync_api import Browser, Page  # noqa: E402

from tests.demo.browser import PASSWORD, Visitor, chromium, launched  # noqa: E402
from tests.demo.harness import Demo, environment, free_port, wait_for  # noqa: E402
from webapp.servers import running  # noqa: E402

STATES = ("empty", "demo", "full")
ROWS = 300
WIDTHS = (1440, 390)
THEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
TALLEST = 2600  # px of a page that are shown
SETTLE_MS = {"jobs:run-detail": 2500, "jobs:run-metrics": 1500, "planning:plan-detail": 900, "overview": 500}
START, END = "<!-- pages: written by scripts/screens.py -->", "<!-- end of pages -->"


@contextmanager
def quiet_site(state: str, port: int) -> Iterator[str]:
    """Servers and web process alone, in a folder of their own; `full` has ROWS rows of everything."""
    var = Path(tempfile.mkdtemp(prefix="meridian-"))
    var.chmod(0o711)  # as root the servers run as another account: their data stays in here
    with running(var) as urls:
        env = environment(var) | {
            "DATABASE_URL": urls.database_url,
            "VALKEY_URL": urls.valkey_url,
            "DJANGO_SETTINGS_MODULE": "webapp.settings",
            "MERIDIAN_NODE_SILENT_S": "86400",
            "MERIDIAN_LOG": "ERROR",
        }
        os.environ.update(env)
        python = [sys.executable]
        subprocess.run([*python, "manage.py", "migrate", "-v0"], cwd=ROOT, env=env, check=True)
        subprocess.run([*python, __file__, "--seed", state], cwd=ROOT, env=env, check=True)
        uvicorn = ["-m", "uvicorn", "webapp.asgi:application", "--port", str(port), "--log-level", "error"]
        web = subprocess.Popen([*python, *uvicorn, "--timeout-graceful-shutdown", "1"], cwd=ROOT, env=env)
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            web.terminate()
            web.wait(10)
    shutil.rmtree(var, ignore_errors=True)


@contextmanager
def demo_site(port: int) -> Iterator[str]:
    """The whole product with its demo, training for some twenty seconds."""
    var = Path(tempfile.mkdtemp(prefix="meridian-demo-"))
    var.chmod(0o711)
    demo = Demo(var, port)
    try:
        demo.start()
        for given in ("DATABASE_URL", "VALKEY_URL"):  # of the site before
            os.environ.pop(given, None)
        os.environ.update(environment(var), DJANGO_SETTINGS_MODULE="webapp.settings")
        time.sleep(20)
        yield demo.url
    finally:
        demo.stop()
        shutil.rmtree(var, ignore_errors=True)


def seed(state: str) -> None:
    """Fill the database of this environment; called in a process of its own."""
    import django

    django.setup()
    from tests.site import many, world
    from webapp.accounts.models import Role, Team

    if state == "full":
        made = world.make_world()
        many.fill(made, range(ROWS))
        many.beat_on(made)
        admin = made.users["admin"]
    else:
        admin = world.make_user("admin", Team.objects.create(name="Research"), Role.ADMIN)
    admin.set_password(PASSWORD)
    admin.save()


def pages() -> dict[str, str]:
    """URL name → address of every page of this environment's site; downloads and data are left out."""
    answer = subprocess.run(
        [sys.executable, __file__, "--list"], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True
    )
    return dict(json.loads(answer.stdout.splitlines()[-1]))


def list_pages() -> None:
    """Print the pages as JSON; called in a process of its own."""
    import django

    django.setup()
    from django.urls import reverse

    from tests.site import many

    world = many.world_of_database()
    client = world.client("admin")
    found = {"login": reverse("login")}  # who is logged in is sent on
    for name, url in many.addresses(world).items():
        answer = client.get(url, HTTP_HOST="127.0.0.1")
        if (
            answer.status_code == 200
            and answer["Content-Type"].startswith("text/html")
            and not answer.streaming
        ):
            found[name] = url
    sys.stdout.write(json.dumps(found) + "\n")


def shoot(page: Page) -> bytes:
    """The page, full length up to TALLEST px, as a small WebP."""
    high = min(TALLEST, int(page.evaluate("document.documentElement.scrollHeight")))
    width = page.viewport_size["width"] if page.viewport_size else WIDTHS[0]
    picture = page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": width, "height": max(high, 500)})
    # The octree keeps the few green and red pixels of a state, which a median cut would give up.
    octree = Image.Quantize.FASTOCTREE
    few = Image.open(io.BytesIO(picture)).convert("RGB").quantize(128, octree, dither=Image.Dither.NONE)
    small = io.BytesIO()
    few.convert("RGB").save(small, "WEBP", lossless=True, method=2)
    return small.getvalue()


def file_name(name: str, width: int, theme: str) -> str:
    return f"{re.sub(r'[^a-z0-9]+', '-', name.lower())}-{width}-{theme}.webp"


def take(browser: Browser, url: str, wanted: dict[str, str], out: Path) -> list[str]:
    """All pictures of one state; returns what was wrong with the pages."""
    wrong: list[str] = []
    out.mkdir(parents=True, exist_ok=True)
    visitor = Visitor(browser, url, width=WIDTHS[0])
    visitor.page.set_default_timeout(60_000)
    if "login" in wanted:
        _shots(visitor, "login", wanted["login"], out, wrong)
    visitor.login("admin", PASSWORD)
    for name, path in wanted.items():
        if name != "login":
            _shots(visitor, name, path, out, wrong)
    visitor.close()
    return wrong + visitor.complaints


def _shots(visitor: Visitor, name: str, path: str, out: Path, wrong: list[str]) -> None:
    """One page, loaded once and then shown at every width in both themes."""
    page = visitor.page
    page.goto(visitor.url + path)
    page.wait_for_timeout(SETTLE_MS.get(name, 100))
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": 900})
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            page.wait_for_timeout(200)
            (out / file_name(name, width, theme)).write_bytes(shoot(page))
        if visitor.sticks_out():
            wrong.append(f"{path} scrolls sideways at {width} px")
    page.set_viewport_size({"width": WIDTHS[0], "height": 900})
    page.emulate_media(color_scheme=THEMES[0])


def write_index(out: Path) -> None:
    """The table of all pictures, between the marks of the README."""
    readme = out / "README.md"
    text = readme.read_text() if readme.exists() else f"# Pictures of every page\n\n{START}\n{END}\n"
    names = sorted({re.sub(r"-\d+-\w+\.webp$", "", p.name) for p in out.glob("*/*.webp")})
    rows = ["| page | " + " | ".join(STATES) + " |", "| --- | " + " | ".join("---" for _ in STATES) + " |"]
    for name in names:
        cells = []
        for state in STATES:
            links = [
                f"[{width} {theme}]({state}/{file})"
                for width in WIDTHS
                for theme in THEMES
                if (out / state / (file := file_name(name, width, theme))).exists()
            ]
            cells.append(" · ".join(links) or "–")
        rows.append(f"| {name} | " + " | ".join(cells) + " |")
    before, _, rest = text.partition(START)
    readme.write_text(before + START + "\n" + "\n".join(rows) + "\n" + END + rest.partition(END)[2])


def site(state: str, port: int) -> Any:
    return demo_site(port) if state == "demo" else quiet_site(state, port)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--states", default=",".join(STATES))
    parser.add_argument("--only", default="", help="only pages whose URL name contains this")
    parser.add_argument("--out", type=Path, default=ROOT / "docs/screens")
    parser.add_argument("--serve", choices=STATES)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--seed", choices=STATES, help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.seed or asked.list:
        seed(asked.seed) if asked.seed else list_pages()
        return 0
    port = asked.port or free_port()
    if asked.serve:
        with site(asked.serve, port) as url:
            sys.stderr.write(f"{url}  admin / {PASSWORD}\n")
            time.sleep(1e6)
    wrong = []
    path = chromium()
    if path is None:
        parser.error("no Chromium found (install one, or set CHROMIUM to its path)")
    for state in asked.states.split(","):
        with site(state, port) as url, launched(path) as browser:
            wait_for("the site", lambda url=url: _answers(url), 60)
            wanted = {name: where for name, where in pages().items() if asked.only in name}
            wrong += [f"{state}: {line}" for line in take(browser, url, wanted, asked.out / state)]
            sys.stderr.write(f"{state}: {len(wanted)} pages\n")
    write_index(asked.out)
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


def _answers(url: str) -> bool:
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(f"{url}/login/", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    sys.exit(main())
