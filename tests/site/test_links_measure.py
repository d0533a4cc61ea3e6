"""The rate of a link: asked of a node at each end, answered in one event, kept in its history."""

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse
from django.utils import timezone

from engine.errors import InputError
from tests.events import event
from webapp.inventory import services
from webapp.inventory.dispatch import BrokerDown
from webapp.inventory.models import LinkMeasurement, LinkTrial, Node

RATES = [{"connections": 1, "gbps": 0.3}, {"connections": 2, "gbps": 0.6}, {"connections": 4, "gbps": 0.61}]


class Agents:
    def __init__(self, *, away: bool = False) -> None:
        self.asked: dict[str, dict[str, Any]] = {}
        self.away = away

    def __call__(self, node_name: str, task: str, kwargs: Any) -> str:
        assert task == "workers.measure_link"
        if self.away:
            raise BrokerDown(node_name, "refused")
        self.asked[node_name] = dict(kwargs)
        return "id"


@pytest.fixture
def question(world: Any, django_capture_on_commit_callbacks: Any) -> tuple[LinkTrial, Agents]:
    world.hear()
    agents = Agents()
    with django_capture_on_commit_callbacks(execute=True):
        trial = services.measure_link(world.users["operator"], world.link, send=agents)
    return trial, agents


def answer(of: LinkTrial, **changes: Any) -> Any:
    return event("rates", **{"trial": of.trial, "rtt_ms": 20.0, "rates": RATES, **changes})


def test_one_node_of_each_end_is_asked_and_the_emulated_link_has_its_figures(
    world: Any, question: Any
) -> None:
    trial, agents = question
    listener, caller = agents.asked[trial.target.name], agents.asked[trial.source.name]
    assert trial.emulated
    assert (trial.source.dc, trial.target.dc) == (world.link.a, world.link.b)
    assert "peer" not in listener
    assert caller["peer"] == {"host": trial.target.host, "port": listener["port"]}
    assert listener["secret"] == caller["secret"]
    assert caller["emulated"]["latency_ms"] == world.link.latency_ms
    assert caller["emulated"]["bandwidth_gbps"] == world.link.bandwidth_gbps


def test_rates_go_into_the_history_and_the_page(world: Any, question: Any) -> None:
    trial, _ = question
    page = world.client("viewer")
    where = reverse("inventory:link-trial", args=[world.link.pk])
    assert b"hx-trigger" in page.get(where).content
    assert services.record_rates(trial.source.name, answer(trial))
    assert not services.record_rates(trial.source.name, answer(trial, rtt_ms=99.0)), "the first answer stays"
    rows = list(LinkMeasurement.objects.filter(link=world.link, source="probe"))
    assert [(row.connections, row.bandwidth_gbps, row.latency_ms) for row in rows] == [
        (4, 0.61, 10.0),
        (2, 0.6, None),
        (1, 0.3, None),
    ]
    shown = page.get(where).content.decode()
    assert "hx-trigger" not in shown
    assert "0.610" in shown
    assert "0.610" in page.get(reverse("inventory:link-detail", args=[world.link.pk])).content.decode()
    assert world.client("stranger").get(where).status_code == 404


@pytest.mark.parametrize(
    "changes",
    [
        {"error": "cannot reach 10.0.1.1:29599", "rates": []},
        {"rates": []},
        {"rates": [{"connections": 1, "gbps": 0.0}]},
        {"rates": [{"connections": 3, "gbps": 1.0}]},
        {"rtt_ms": None},
    ],
)
def test_what_cannot_be_a_rate_is_an_answer_without_one(world: Any, question: Any, changes: Any) -> None:
    trial, _ = question
    assert services.record_rates(trial.source.name, answer(trial, **changes))
    trial.refresh_from_db()
    assert trial.error
    assert trial.rates == []
    assert not LinkMeasurement.objects.filter(source="probe").exists()


def test_only_the_node_that_was_asked_answers(world: Any, question: Any) -> None:
    trial, _ = question
    assert not services.record_rates(trial.target.name, answer(trial))
    assert not services.record_rates(trial.source.name, answer(trial, trial="0" * 32))
    trial.refresh_from_db()
    assert trial.is_waiting


def test_no_second_trial_while_one_is_under_way(world: Any, question: Any) -> None:
    trial, _ = question
    with pytest.raises(InputError, match="running already"):
        services.measure_link(world.users["operator"], world.link)
    LinkTrial.objects.update(asked_at=timezone.now() - timedelta(minutes=2))
    trial.refresh_from_db()
    assert trial.is_unanswered
    services.measure_link(world.users["operator"], world.link, send=Agents())


def test_ends_that_cannot_be_measured_say_why(world: Any) -> None:
    with pytest.raises(InputError, match="online"):
        services.measure_link(world.users["operator"], world.link)
    world.hear()
    Node.objects.update(device="cuda")
    with pytest.raises(InputError, match="one machine"):
        services.measure_link(world.users["operator"], world.link)
    for number, node in enumerate(world.nodes):
        Node.objects.filter(pk=node.pk).update(host=f"10.0.{number}.1")
    assert not services.measure_link(world.users["operator"], world.link).emulated


def test_a_broker_that_is_away_is_an_answer(world: Any, django_capture_on_commit_callbacks: Any) -> None:
    world.hear()
    with django_capture_on_commit_callbacks(execute=True):
        trial = services.measure_link(world.users["operator"], world.link, send=Agents(away=True))
    trial.refresh_from_db()
    assert "broker" in trial.error


def test_the_button_says_what_is_in_the_way(world: Any) -> None:
    page = world.client("operator")
    done = page.post(reverse("inventory:link-measure", args=[world.link.pk]), follow=True)
    assert "No measurement was started" in done.content.decode()
