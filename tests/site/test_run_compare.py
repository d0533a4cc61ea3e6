"""Comparing two runs: chosen from the list, their figures, the fields that differ, and who may see what."""

import re
from html import unescape
from typing import Any

import pytest

from engine.job.changed import changed
from tests.site.telemetry import measure, step_event, take_in
from tests.site.world import World
from webapp.accounts.models import Role
from webapp.jobs.allocate import allocate
from webapp.jobs.models import Job, Run
from webapp.live.compare import predicted_bubbles
from webapp.live.selectors import snapshot

pytestmark = pytest.mark.django_db


def page(world: World, query: str, name: str = "viewer") -> Any:
    answer = world.client(name).get(f"/runs/compare/{query}")
    assert answer.status_code == 200
    return answer


def change(run: Run, path: str, value: Any) -> None:
    run.job.document = changed(run.job.document, {path: value})
    run.job.save()


def two(world: World) -> tuple[Run, Run]:
    """Two runs of the same plan, the first one measured."""
    first, second = world.launch(), world.launch()
    measure(world, first, iterations=3)
    return first, second


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR])
def test_the_list_leads_to_the_comparison_of_two_ticked_runs(world: World, role: str) -> None:
    first, second = world.launch(), world.launch()
    client = world.client(role)
    text = client.get("/runs/").content.decode()
    assert 'action="/runs/compare/"' in text
    assert text.count('name="pk"') == 2
    assert ("Delete…" in text) == (role == Role.OPERATOR)
    sent = client.post("/runs/compare/", {"pk": [second.pk, first.pk]})
    assert sent["Location"] == f"/runs/compare/?run={second.pk}&run={first.pk}"
    for wrong in ([], [first.pk, second.pk, second.pk + 1]):
        back = client.post("/runs/compare/", {"pk": wrong, "query": "q=three"}, follow=True)
        assert back.redirect_chain == [("/runs/?q=three", 302)]
        assert f"Tick two runs to compare them; {len(wrong)} were ticked." in back.content.decode()


def test_one_run_or_none_asks_for_the_other(world: World) -> None:
    text = page(world, "").content.decode()
    assert "No runs yet" in text
    run = world.launch()
    for query in (f"?run={run.pk}", "?run=0&run=x", f"?run={run.pk}&run={run.pk}", f"?run={'9' * 30}"):
        answer = page(world, query)
        assert "lines" not in answer.context
        assert "Choose two runs" in answer.content.decode()
    assert (
        f'href="/runs/compare/?run={run.pk}"'
        in world.client("viewer").get(f"/runs/{run.pk}/").content.decode()
    )


def test_what_one_may_not_see_is_not_compared(world: World) -> None:
    first, second = world.launch(), world.launch()
    query = f"?run={first.pk}&run={second.pk}"
    assert page(world, query, "stranger").context["runs"] == []
    others = world.users["stranger"].memberships.get().team
    Job.objects.filter(pk=second.job_id).update(team=others)
    assert page(world, query).context["runs"] == [first]


def test_figures_are_those_of_the_runs_own_pages(world: World) -> None:
    first, second = two(world)
    answer = page(world, f"?run={first.pk}&run={second.pk}")
    lines = {line.label: line.figures for line in answer.context["lines"]}
    usage, predicted = snapshot(first.pk)["usage"], first.predicted
    measured, not_yet = lines["Iteration time"]
    assert (measured.measured, measured.predicted) == (usage["iteration_ms"], predicted["iteration_ms"])
    assert (not_yet.measured, not_yet.off_percent) == (None, None)
    assert lines["Utilization"][0].measured == 100 * usage["run"]["utilization"]
    assert lines["Bubbles"][0].measured == 100 * usage["run"]["bubbles"]
    tokens = first.job.document["cell"]["microbatches"] * 2 * 32  # two pipelines of sequences of 32
    assert lines["Throughput"][0].measured == pytest.approx(tokens / usage["iteration_ms"] * 1e3)
    assert [chart["tokens"] for chart in answer.context["charts"]] == [tokens, tokens]
    assert not any(label.startswith("Loss") for label in lines), "only one of them has a loss"


def test_predicted_bubbles_and_utilization_leave_the_time_of_syncs(world: World) -> None:
    run = world.launch()
    share = predicted_bubbles(run)
    assert share is not None
    assert 0 <= share <= 1 - run.predicted["utilization"] + 1e-4
    run.predicted = {}
    assert predicted_bubbles(run) is None


def test_losses_are_compared_after_the_last_iteration_of_both(world: World) -> None:
    first, second = two(world)
    type(world.nodes[0]).objects.update(gpus=8)
    world.hear()
    assert allocate(second)
    take_in([("east-1", "1-0", step_event(second, i, loss=9.0 - i)) for i in range(2)])
    answer = page(world, f"?run={first.pk}&run={second.pk}")
    (losses,) = (line for line in answer.context["lines"] if line.label.startswith("Loss"))
    assert losses.label == "Loss after iteration 2"
    assert [figure.measured for figure in losses.figures] == [4.0, 8.0]


def test_documents_differ_by_section_and_field(world: World) -> None:
    first, second = world.launch(), world.launch()
    query = f"?run={first.pk}&run={second.pk}"
    assert "The documents are the same." in page(world, query).content.decode()
    change(second, "optimizer.lr", 0.5)
    change(second, "persistence.resume", "x" * 1_000)
    answer = page(world, query)
    shown = {section.name: section.fields for section in answer.context["sections"]}
    assert list(shown) == ["optimizer", "persistence"]
    (lr,) = shown["optimizer"]
    assert (lr.path, lr.before, lr.after) == ("optimizer.lr", "0.001", "0.5")
    text = unescape(answer.content.decode())
    assert "(1,000 characters)" in text
    assert "x" * 300 not in text
    assert "different models" not in text
    whole = page(world, f"{query}&all").context["sections"]
    assert {"cell", "model", "optimizer"} <= {section.name for section in whole}
    assert any(not one.changed for section in whole for one in section.fields)


def test_runs_of_different_models_say_so(world: World) -> None:
    first, second = world.launch(), world.launch()
    change(second, "model.hidden", 64)
    text = unescape(page(world, f"?run={first.pk}&run={second.pk}").content.decode())
    match = re.search(r"These runs train different models: (.*?)\. ", text)
    assert match
    assert len(set(re.findall(r"a stand-in of ([\d,]+) parameters", match[1]))) == 2
