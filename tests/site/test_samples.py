"""The first samples on a launch form: asked of the node that would read them, shown to who asked."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from django.utils import timezone

from engine.job.changed import changed
from tests.events import event
from webapp.accounts.models import AuditEntry, Membership, Role
from webapp.inventory import services
from webapp.inventory.dispatch import BrokerDown
from webapp.inventory.models import Node, SamplePreview
from webapp.jobs.samples import preview_of
from webapp.live.services import take_in
from workers.tasks import register


class Agents:
    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.away = False

    def __call__(self, node_name: str, task: str, kwargs: Any) -> str:
        assert task == "workers.preview_samples"
        if self.away:
            raise BrokerDown(node_name, "refused")
        self.asked.append((node_name, dict(kwargs)))
        return "id"


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> Agents:
    agents = Agents()
    monkeypatch.setattr("webapp.inventory.services.samples.send_task", agents)
    return agents


def ask(world: Any, callbacks: Any, *, follow: bool = False, **changes: Any) -> Any:
    """The launch form of the plan, sent with *Show first samples*."""
    client, url = world.client("operator"), f"/plans/{world.plan.pk}/launch/0/"
    form = client.get(url).context["form"]
    shown = {field.name: field.value() for field in form if field.value() is not None}
    with callbacks(execute=True):
        answer = client.post(url, {**shown, "data": "/data/books", "preview": "1", **changes})
    return client.get(answer.url) if follow else answer


def said(preview: SamplePreview, **changes: Any) -> None:
    answer = event("samples", preview=preview.preview, **changes)
    take_in([(preview.node.name, "1-0", answer)], set())


def test_the_node_of_the_first_stage_is_asked_for_what_the_form_says(
    world: Any, agents: Agents, django_capture_on_commit_callbacks: Any
) -> None:
    world.hear()
    answer = ask(world, django_capture_on_commit_callbacks, seed="7")
    preview = SamplePreview.objects.get()
    assert answer.url == f"/runs/samples/{preview.pk}/"
    ((name, kwargs),) = agents.asked
    job = kwargs["job"]
    first = job["datacenters"][job["cell"]["dc_of_stage"][0]]["name"]
    assert (name, kwargs["dc"]) == (f"{first}-1", first)
    assert job["data"] == {"files": "/data/books"}
    assert job["optimizer"]["seed"] == 7
    assert AuditEntry.objects.filter(verb="preview", message="").get().after == {
        "reads": "Text: /data/books."
    }
    assert not world.plan.jobs.exists(), "nothing is launched"


def test_the_agent_knows_what_it_is_asked(
    world: Any, agents: Agents, django_capture_on_commit_callbacks: Any
) -> None:
    world.hear()
    ask(world, django_capture_on_commit_callbacks)
    ((_, kwargs),) = agents.asked
    app, started = Celery("agent", set_as_current=False), list[tuple[Any, ...]]()
    previewer: Any = SimpleNamespace(start=lambda *given: started.append(given))
    parts: list[Any] = [None] * 3
    register(app, *parts, previewer)
    app.tasks[services.samples.TASK](**kwargs)
    assert started == [(kwargs["preview"], kwargs["job"], kwargs["dc"])]


def test_samples_are_shown_escaped_and_the_page_asks_until_they_are_there(
    world: Any, agents: Agents, django_capture_on_commit_callbacks: Any
) -> None:
    world.hear()
    page = ask(world, django_capture_on_commit_callbacks, follow=True).content.decode()
    assert "hx-trigger" in page
    assert "<noscript>" in page, "without a script a link shows the answer"
    preview = SamplePreview.objects.get()
    said(preview)
    said(preview, error="a second answer", samples=[])
    where = f"/runs/samples/{preview.pk}/"
    shown = world.client("operator").get(where, headers={"HX-Request": "true"}).content.decode()
    assert "hx-trigger" not in shown
    assert "<html" not in shown
    assert "document 7" in shown
    assert "⟪one two⟫</span> &lt;b&gt;three&lt;/b&gt;" in shown
    assert "the loss counts 1 of 3 tokens; only its beginning is shown" in shown
    assert "<html" in world.client("operator").get(where).content.decode()


@pytest.mark.parametrize("error", ["data.files: /data/books: no such file or folder", ""])
def test_an_error_names_the_node(
    world: Any, agents: Agents, error: str, django_capture_on_commit_callbacks: Any
) -> None:
    world.hear()
    ask(world, django_capture_on_commit_callbacks)
    preview = SamplePreview.objects.get()
    said(preview, samples=[], error=error)
    page = world.client("operator").get(f"/runs/samples/{preview.pk}/").content.decode()
    assert f"{preview.node.name}: {error or 'The node gave no reason.'}" in page


def test_who_did_not_ask_sees_nothing(
    world: Any, agents: Agents, django_capture_on_commit_callbacks: Any
) -> None:
    world.hear()
    ask(world, django_capture_on_commit_callbacks)
    where = f"/runs/samples/{SamplePreview.objects.get().pk}/"
    assert world.client("admin").get(where).status_code == 404
    Membership.objects.filter(user=world.users["operator"]).update(role=Role.VIEWER)
    assert world.client("operator").get(where).status_code == 403, "who may no longer launch"


def test_another_node_does_not_answer(
    world: Any, agents: Agents, django_capture_on_commit_callbacks: Any
) -> None:
    world.hear()
    ask(world, django_capture_on_commit_callbacks)
    preview = SamplePreview.objects.get()
    other = Node.objects.exclude(pk=preview.node.pk).first()
    assert other
    assert not services.record_samples(other.name, event("samples", preview=preview.preview))
    assert not services.record_samples(preview.node.name, event("samples", preview="0" * 32))


def test_no_node_that_answers_is_said_on_the_form(
    world: Any, agents: Agents, django_capture_on_commit_callbacks: Any
) -> None:
    answer = ask(world, django_capture_on_commit_callbacks)
    assert answer.status_code == 422
    assert "no node there answers now" in answer.content.decode()
    assert agents.asked == []


def test_a_form_with_errors_asks_nobody_and_says_them_to_the_script(
    world: Any, agents: Agents, django_capture_on_commit_callbacks: Any
) -> None:
    world.hear()
    changes = {"data": "relative", "steps": "0"}
    assert ask(world, django_capture_on_commit_callbacks, **changes).status_code == 422
    client, url = world.client("operator"), f"/plans/{world.plan.pk}/launch/0/"
    part = client.post(url, {"preview": "1", **changes}, headers={"HX-Request": "true"}).content.decode()
    assert part.count("<section") == 1
    assert "Training data, text: Enter a path that begins with /" in part
    assert not SamplePreview.objects.exists()


def test_a_broker_that_is_away_is_an_answer(
    world: Any, agents: Agents, django_capture_on_commit_callbacks: Any
) -> None:
    world.hear()
    agents.away = True
    page = ask(world, django_capture_on_commit_callbacks, follow=True)
    assert "The broker does not answer" in page.content.decode()


def test_a_silent_agent_and_old_answers_end(
    world: Any, agents: Agents, django_capture_on_commit_callbacks: Any
) -> None:
    world.hear()
    ask(world, django_capture_on_commit_callbacks)
    preview = SamplePreview.objects.get()
    SamplePreview.objects.update(asked_at=timezone.now() - timedelta(minutes=2))
    page = world.client("operator").get(f"/runs/samples/{preview.pk}/").content.decode()
    assert "No answer" in page
    assert "hx-trigger" not in page
    SamplePreview.objects.update(asked_at=timezone.now() - timedelta(days=2))
    ask(world, django_capture_on_commit_callbacks)
    assert not SamplePreview.objects.filter(pk=preview.pk).exists(), "text of files is not kept for long"


def test_a_placed_job_asks_the_node_of_its_first_rank(world: Any, agents: Agents) -> None:
    world.hear()
    document = changed(world.launch().document, {})
    first = document["datacenters"][document["cell"]["dc_of_stage"][0]]["name"]
    node = next(node for node in world.nodes if node.name == f"{first}-1")
    ranks = [[node.name, 3]]
    assert preview_of(world.users["operator"], world.team, document, ranks).node == node
