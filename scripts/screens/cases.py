"""Situations that no list of pages shows: states of a run, forms with errors, refusals, open menus."""

import os
import re
from collections.abc import Callable
from dataclasses import replace

import redis

from scripts.screens.camera import Shot, asked
from scripts.screens.sites import rows
from tests.demo.browser import Visitor

RUN_MS = 2500
# A network design of experts, and its iteration time over the rate of the NICs.
SWEEP = (
    "gpus=8192&gpu_type=h100&hb_domain=8%2C+64%2C+256&switch_radix=64&message_mb=1000&model=gpt-146b&batch=2048"
    "&recompute=selective&experts=64&top_k=2&every=2&sweep=nic_gb_s&values=12.5%2C+25%2C+50%2C+100%2C+200"
    "&port_usd=694&transceiver_usd=199&port_w=18&transceiver_w=9"
)


def shots(paths: dict[str, str]) -> list[Shot]:
    """All situations; `paths` says where each thing stands (staged.paths)."""
    others = [_watching(paths), _parts(paths), _forms(paths), _outside(paths), _things(paths), _errors(paths)]
    others.append(_tenancies(paths))
    return _runs(paths) + [replace(shot, sparse=not shot.narrow_only) for some in others for shot in some]


def _runs(paths: dict[str, str]) -> list[Shot]:
    """The run page in every state."""
    return [
        Shot(name=name, path=path, settle_ms=8000 if name == "run-large" else RUN_MS)
        for name, path in paths.items()
        if name.startswith("run-") and name not in ("run-logs", "run-metrics", "run-clone", "run-three")
    ]


def _watching(paths: dict[str, str]) -> list[Shot]:
    """What can be done on the run page, and what goes wrong with its connection."""
    run = paths["run-running"]

    def on(name: str, act: Callable[[Visitor], None], path: str = run, **more: object) -> Shot:
        return Shot(name=f"run-page-{name}", path=path, act=act, settle_ms=RUN_MS, **more)  # type: ignore[arg-type]

    lost = ("ERR_INTERNET_DISCONNECTED", "WebSocket connection", "ERR_FAILED")
    return [
        on("offline", _offline, expected=lost),
        on("polling", _without_sockets, expected=lost, alone=True),
        on("frozen", lambda v: v.page.click("[data-freeze]")),
        on("op", _point_at_an_op),
        on("by-stage", lambda v: v.page.click("[data-by=stage]")),
        on("close-up", _zoom_in),
        on("guide", lambda v: v.page.locator("[data-guide-open]").first.click()),
        on("totals", lambda v: v.page.click("[data-totals-open]")),
        on("table", lambda v: v.page.click("[data-as-table]")),
        on("stop", lambda v: v.page.click("[data-cancel-open]")),
        on("command", lambda v: v.page.click("summary.button")),
        on("events", lambda v: v.page.click("#tab-events"), path=paths["run-failed"]),
        on("events-adapted", lambda v: v.page.click("#tab-events"), path=paths["run-adapted"]),
        on("moved", lambda v: v.page.click("#tab-events"), path=paths["run-moved"]),
        on("gpus", lambda v: v.page.click("#tab-ranks"), path=paths["run-failed"]),
        on("gpus-starting", lambda v: v.page.click("#tab-ranks"), path=paths["run-starting"]),
        on("job", lambda v: v.page.click("#tab-job")),
        on("large-stages", lambda v: v.page.click("[data-by=stage]"), path=paths["run-large"]),
    ]


def _offline(visitor: Visitor) -> None:
    visitor.context.set_offline(True)
    visitor.page.wait_for_timeout(1500)


def _without_sockets(visitor: Visitor) -> None:
    visitor.page.route_web_socket("**/ws/**", lambda socket: socket.close())
    visitor.page.reload()
    visitor.page.locator("[data-badge][data-link=polling]").wait_for()


def _point_at_an_op(visitor: Visitor) -> None:
    page = visitor.page
    if page.evaluate("innerWidth") < 640:
        page.click("[data-freeze]")
    box = page.locator(".tl-overlay").bounding_box()
    assert box
    page.mouse.move(box["x"] + 0.62 * box["width"], box["y"] + 110)
    if box["width"] < 640:
        page.mouse.click(box["x"] + 0.62 * box["width"], box["y"] + 110)


def _zoom_in(visitor: Visitor) -> None:
    for _ in range(4):
        visitor.page.click("[data-zoom=in]")


def _parts(paths: dict[str, str]) -> list[Shot]:
    """The other pages of a run, and what the frame of every page can open."""
    logs = paths["run-logs"]
    return [
        Shot(name="log", path=logs),
        Shot(name="log-found", path=f"{logs}?q=UserWarning"),
        Shot(name="log-of-one", path=f"{logs}?rank=3"),
        Shot(name="network-sweep", path=f"/network/?{SWEEP}", settle_ms=1500),
        Shot(name="log-none", path=f"{logs}?q=nowhere"),
        Shot(name="log-empty", path=paths["run-queued"] + "logs/"),
        Shot(name="metrics-10000", path=paths["run-metrics"], settle_ms=2000),
        Shot(name="metrics-empty", path=paths["run-queued"] + "metrics/", settle_ms=600),
        Shot(name="find", path="/", act=_find, settle_ms=500),
        Shot(
            name="menu", path="/", act=lambda v: v.page.click("[data-menu]"), narrow_only=True, settle_ms=500
        ),
        Shot(name="keys", path="/runs/", act=lambda v: v.page.keyboard.press("?")),
        Shot(name="filtered", path="/runs/?status=failed&q=fail"),
        Shot(name="filtered-none", path="/runs/?q=nowhere"),
    ]


def _find(visitor: Visitor) -> None:
    menu = visitor.page.locator("[data-menu]")
    if menu.is_visible():
        menu.click()
    visitor.page.fill("[data-find] input", "no")


def _forms(paths: dict[str, str]) -> list[Shot]:
    """Every form, sent with nothing right in it."""
    where = {
        "datacenter-create": "/datacenters/new/",
        "datacenter-edit": paths["dc-edit"],
        "node-create": "/nodes/new/",
        "link-create": "/links/new/",
        "link-edit": paths["link-edit"],
        "pool-create": paths["pool-create"],
        "pool-edit": paths["pool-edit"],
        "plan-create": "/plans/new/",
        "run-clone": paths["run-clone"],
        "team-create": "/teams/new/",
        "invitation-create": "/invitations/new/",
        "me-edit": "/account/edit/",
        "me-password": "/account/password/",
    }
    return [
        Shot(name=f"errors-{name}", path=path, act=_botch, expected=("422",)) for name, path in where.items()
    ]


def _botch(visitor: Visitor) -> None:
    with visitor.page.expect_navigation():
        asked(visitor.page, "botch")


def _outside(paths: dict[str, str]) -> list[Shot]:
    """Pages of people who are not logged in."""
    return [
        Shot(name="login-wrong", path="/login/", who=None, act=_log_in("viewer", 1), expected=("40", "42")),
        Shot(name="login-locked", path="/login/", who=None, act=_log_in("locked", 9), expected=("40", "42")),
        Shot(name="invitation", path=paths["invitation"], who=None),
        Shot(name="invitation-errors", path=paths["invitation"], who=None, act=_botch, expected=("422",)),
        Shot(name="invitation-logged-in", path=paths["invitation"], who="viewer"),
        Shot(name="invitation-over", path=paths["invitation-over"], who=None, expected=("41", "404")),
        Shot(
            name="password-forgotten-errors",
            path="/password/",
            who=None,
            act=_botch,
            expected=("422",),
        ),
        Shot(name="password-set", path=paths["password-set"], who=None),
        Shot(name="password-set-errors", path=paths["password-set"], who=None, act=_botch, expected=("422",)),
        Shot(name="tenant", path="/", who="tenant"),
        Shot(name="viewer-overview", path="/", who="viewer", settle_ms=500),
        Shot(name="viewer-plan", path=paths["plan-three"], who="viewer", settle_ms=900),
    ]


def _tenancies(paths: dict[str, str]) -> list[Shot]:
    """A request as admins decide on it, and what the tenant has."""
    waiting = paths["tenancy-Fathom Images"] + "review/"
    return [
        Shot(name="tenancy-review", path=waiting, settle_ms=800),
        Shot(name="tenancy-review-errors", path=waiting, act=_refuse, expected=("422",)),
        Shot(name="tenancy-renewal", path=paths["tenancy-Halden Eval"]),
        Shot(name="tenancy-used", path=paths["tenancy-Fathom Search"], who="tenant"),
        Shot(name="tenancy-refused", path=paths["tenancy-Night batch"], who="tenant"),
        Shot(name="tenancy-form", path="/tenancies/new/", who="tenant"),
        Shot(name="tenancy-key", path="/keys/new/", who="tenant", act=_make_key, expected=("422",)),
        Shot(name="tenancy-usage", path="/usage/", who="tenant"),
        Shot(name="prefill-live-selling", path="/prefill/live/", act=_sell, settle_ms=RUN_MS),
    ]


def _sell(visitor: Visitor) -> None:
    rows("sell")
    visitor.page.reload()


def _refuse(visitor: Visitor) -> None:
    with visitor.page.expect_navigation():
        visitor.page.click("button[value=refuse]")


def _make_key(visitor: Visitor) -> None:
    visitor.page.fill("[name=name]", "evaluation")
    with visitor.page.expect_navigation():
        visitor.page.click("main form button.primary")


def _log_in(name: str, times: int) -> Callable[[Visitor], None]:
    def act(visitor: Visitor) -> None:
        for _ in range(times):
            visitor.page.goto(visitor.url + "/login/")
            visitor.page.fill("[name=username]", name)
            visitor.page.fill("[name=password]", "not the password")
            with visitor.page.expect_navigation():
                visitor.page.press("[name=password]", "Enter")

    return act


def _things(paths: dict[str, str]) -> list[Shot]:
    """Nodes, data centres, people and plans that are not well, and what is shown once."""
    names = (
        "node-never-joined",
        "node-silent",
        "node-old-version",
        "node-draining",
        "node-wrong-clock",
        "node-east-1",
        "dc-leaving",
        "dc-north",
        "dc-delete",
        "dc-drain",
        "link",
        "user-left",
        "user-locked",
        "plan-large",
        "plan-layouts",
        "plan-computing",
        "plan-refused",
        "placement-of-plan",
    )
    things = [Shot(name=name, path=paths[name], settle_ms=600) for name in names]
    lists = {
        "datacenter": "/datacenters/",
        "link": "/links/",
        "node": "/nodes/",
        "run": "/runs/",
        "overview": "/",
    }
    things += [Shot(name=f"few-{name}", path=path, settle_ms=500) for name, path in lists.items()]
    once = {
        "join-command": (paths["node-never-joined"], "join command"),
        "credentials": (paths["node-never-joined"], "by hand|New credentials"),
    }
    return things + [
        Shot(name=f"once-{name}", path=path, act=_press(text)) for name, (path, text) in once.items()
    ]


def _press(text: str) -> Callable[[Visitor], None]:
    def act(visitor: Visitor) -> None:
        with visitor.page.expect_navigation():
            visitor.page.locator("main form button", has_text=re.compile(text)).first.click()
            if visitor.page.locator("#confirm[open]").is_visible():
                visitor.page.click("[data-confirm-yes]")

    return act


def _errors(paths: dict[str, str]) -> list[Shot]:
    """Refusals. A server cannot be made to fail at will: what it would answer is put in place of a page."""
    return [
        Shot(name="error-403", path="/plans/new/", who="viewer", expected=("403",)),
        Shot(name="error-404", path="/nowhere/", expected=("404",)),
        Shot(name="error-404-outside", path="/nowhere/", who=None, expected=("404",)),
        Shot(name="error-500", path="/login/", who=None, act=_answer_with(paths["html-500"])),
        Shot(name="error-400", path="/login/", who=None, act=_answer_with(paths["html-400"])),
        Shot(name="error-broker", path="/runs/", act=_without_broker, expected=("50",)),
        Shot(name="error-csrf", path="/login/", who=None, act=_stale, expected=("403",)),
    ]


def _answer_with(html: str) -> Callable[[Visitor], None]:
    def act(visitor: Visitor) -> None:
        visitor.page.route("**/failed/", lambda route: route.fulfill(body=html, content_type="text/html"))
        visitor.page.goto(visitor.url + "/failed/")

    return act


def _without_broker(visitor: Visitor) -> None:
    """The broker answers nobody for a while."""
    broker = redis.Redis.from_url(os.environ["VALKEY_URL"])
    broker.execute_command("CLIENT", "PAUSE", 9_000, "ALL")
    visitor.page.wait_for_timeout(2_500)  # until what was known of it is old
    visitor.page.reload()
    visitor.page.locator(".notice").wait_for(timeout=8_000)


def _stale(visitor: Visitor) -> None:
    visitor.context.clear_cookies()
    visitor.page.fill("[name=username]", "viewer")
    visitor.page.fill("[name=password]", "x")
    with visitor.page.expect_navigation():
        visitor.page.press("[name=password]", "Enter")


def of_demo() -> list[Shot]:
    """What only a run that trains shows."""
    return [
        Shot(name="run-live-op", path="/runs/", act=_newest_run_and_op, settle_ms=500, sparse=True),
    ]


def _newest_run_and_op(visitor: Visitor) -> None:
    page = visitor.page
    page.locator("#list tbody a[href^='/runs/']").first.click()
    page.wait_for_load_state()
    page.wait_for_timeout(4000)
    _point_at_an_op(visitor)
