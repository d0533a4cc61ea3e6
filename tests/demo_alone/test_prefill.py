"""The demo sells its bubbles: with the key that it wrote down, and to a tenancy that people agree on."""

import re
from collections.abc import Iterator

import pytest

from tests.demo.harness import Client, Demo, wait_for
from tests.demo_alone.own import (
    demo_of_its_own,
    ended,
    first_run,
    operator_of,
    progress,
    query,
    state_of,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]
PROMPT = "The quick brown fox jumps over the lazy dog, and nobody may read this on any disk: 7f3a."


@pytest.fixture
def demo() -> Iterator[Demo]:
    with demo_of_its_own(sells=True) as demo:
        yield demo.start()


def logged_in(demo: Demo, name: str) -> Client:
    client = Client(demo.url)
    client.login(name, "meridian-demo")
    return client


def filled_in(page: str) -> dict[str, str]:
    """The values with which the fields of a page's form begin, as far as they are one line of text."""
    form = dict(re.findall(r'<input[^>]*name="(\w+)"[^>]*value="([^"]*)"', page))
    chosen = re.findall(r'<select[^>]*name="(\w+)".*?<option value="([^"]*)"[^>]*selected', page, re.S)
    return form | dict(chosen)


def key_of_a_tenancy(demo: Demo) -> str:
    """What a tenant asks for, an admin grants, and the key that the tenant makes of it."""
    tenant, admin = logged_in(demo, "tenant"), logged_in(demo, "admin")
    form = filled_in(tenant.get("/tenancies/new/"))
    (dc,) = query(
        demo, "select dc_id from live_prefillcoordinator where state = 'open' order by dc_id limit 1"
    )[0]
    fields = {"name": "search", "purpose": "tests", "model": "llama-tiny", "datacenters": [dc]}
    sizes = {"typical_prompt": 64, "asked_longest_prompt": 512, "asked_ttft_ms": 20_000}
    page = tenant.post("/tenancies/new/", {**form, **fields, **sizes})
    tenancy = re.search(r"/tenancies/(\d+)/$", tenant.last_url)
    assert tenancy, page
    review = f"/tenancies/{tenancy[1]}/review/"
    limits = filled_in(admin.get(review)) | {"price": "1.5", "datacenters": dc, "decision": "approve"}
    page = admin.post(review, limits)
    assert admin.last_url.endswith(f"/tenancies/{tenancy[1]}/"), page
    page = tenant.post("/keys/new/", {"tenancy": tenancy[1], "name": "laptop"})
    key = re.search(r"mrd-[\w-]{43}", page)
    assert key, page
    return key[0]


def test_bubbles_are_sold_while_the_run_trains(demo: Demo) -> None:
    import openai  # here: every test process would import it

    client = operator_of(demo)
    run = first_run(demo, client, iteration=1, seconds=150)
    coordinators = "select count(*) from live_prefillcoordinator where run_id = %s and state = 'open'"
    wait_for("a coordinator in each data centre", lambda: query(demo, coordinators, int(run))[0][0] == 3, 150)
    own = (demo.var / "demo-key").read_text().strip()
    with openai.OpenAI(base_url=f"{demo.url}/v1", api_key=own, max_retries=5, timeout=60) as api:
        before = progress(client, run)
        whole = api.completions.create(model="llama-tiny", prompt=PROMPT, max_tokens=1, temperature=0)
        assert whole.usage is not None
        assert whole.usage.prompt_tokens in (len(PROMPT), len(PROMPT) + 1)  # bytes, and a begin of text
    agreed = key_of_a_tenancy(demo)
    with openai.OpenAI(base_url=f"{demo.url}/v1", api_key=agreed, max_retries=5, timeout=60) as api:
        stream = api.chat.completions.create(
            model=api.models.list().data[0].id,
            messages=[{"role": "user", "content": PROMPT}],
            max_tokens=4,
            temperature=0,
            stream=True,
        )
        assert [piece.choices[0].finish_reason for piece in stream if piece.choices][-1] in ("length", "stop")
    wait_for("it to train on", lambda: progress(client, run) > before + 2, 60)
    assert state_of(client, run)["status"] == "running"
    usage = query(demo, "select outcome from prefill_usageevent order by id")
    assert [outcome for (outcome,) in usage if outcome == "delivered"] == ["delivered"] * 2
    assert "llama-tiny" in client.get("/prefill/live/")
    reports = "select count(*) from live_prefillsecond where run_id = %s and delivered > 0"
    wait_for("a report of prefill", lambda: query(demo, reports, int(run))[0][0] > 0, 30)
    client.post(f"/runs/{run}/cancel/")
    assert ended(client, run, 60)["status"] == "cancelled"
    assert not [path for path in demo.var.rglob("*") if path.is_file() and b"7f3a." in path.read_bytes()]
