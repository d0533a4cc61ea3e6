"""The tab of GPUs in a browser: figures come while it is open, and go where there are none any more."""

import pytest
from django.utils import timezone
from playwright.sync_api import expect

from tests.demo.browser import chromium, launched
from tests.events import event
from tests.site.browsing import LIMIT_MS, SITE, another_thread, answer
from tests.site.telemetry import placed
from tests.site.world import make_world
from webapp.live.models import GpuReading
from webapp.live.services.gpus import record_gpus

PATH = chromium()
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(PATH is None, reason="NO BROWSER TESTED: no Chromium found"),
]
PLACES = (("east-1", 0), ("east-1", 1), ("mid-1", 0))  # of the last one nobody says anything


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        ("cuda", [["97 %", "71.00 GB of 85.00 GB", "64", "613"], ["–", "900.00 MB", "–", "–"]]),
        ("emulated", [["71.00 GB of 85.00 GB"], ["900.00 MB"]]),
    ],
)
def test_the_tab_of_gpus_shows_what_they_do(kind: str, rows: list[list[str]]) -> None:
    world = make_world()
    run = placed(world)
    run.job.document["device"] = {"kind": kind}
    run.job.save()
    client = world.client("viewer")
    ranks = [run.ranks.get(node__name=node, gpu=gpu).rank for node, gpu in PLACES]
    record_gpus("east-1", timezone.now(), event("gpus"))  # type: ignore[arg-type]
    assert PATH
    with another_thread() as apart, launched(PATH) as browser:
        page = browser.new_page()
        page.set_default_timeout(LIMIT_MS)
        page.route("**/*", lambda route: answer(client, apart, route))
        page.goto(f"{SITE}/runs/{run.pk}/")
        figures = [page.locator(f'#gpus [data-rank="{rank}"] [data-figure]') for rank in ranks]
        expect(figures[0]).to_have_text(["–"] * len(rows[0]))
        page.get_by_role("tab", name="GPUs").click()
        for values, texts in zip(figures, [*rows, ["–"] * len(rows[0])], strict=True):
            expect(values).to_have_text(texts, timeout=LIMIT_MS)
        apart(lambda: GpuReading.objects.all().delete())
        expect(figures[0]).to_have_text(["–"] * len(rows[0]), timeout=LIMIT_MS)
