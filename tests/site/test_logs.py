"""Log lines of ranks: each once however often it comes, floods thinned, found again by everybody who may."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from tests.events import EXAMPLES
from tests.site.telemetry import NODES, log_event, placed, take_in
from tests.site.world import World
from webapp.jobs.models import RankState, Run, RunEvent
from webapp.live.models import LogLine
from webapp.live.services import forget_old_lines, logs

Item = tuple[str, str, dict[str, Any]]


@pytest.fixture
def run(world: World) -> Run:
    return placed(world)


def lines(run: Run, count: int, *, rank: int = 0, first: int = 0) -> list[Item]:
    return [(NODES[rank], "1-0", log_event(run, rank, first + i)) for i in range(count)]


def texts(run: Run) -> list[str]:
    return list(LogLine.objects.filter(run=run).order_by("seq", "rank").values_list("text", flat=True))


def test_a_line_is_kept_once_however_often_it_comes(run: Run) -> None:
    some = lines(run, 30)
    take_in(some[:20])
    take_in(some[10:])
    take_in([*some, *some])
    assert texts(run) == [f"line {i} of rank 0" for i in range(30)]
    assert RankState.objects.get(run=run, rank=0).last_line == "line 29 of rank 0"


def test_a_node_writes_in_its_own_ranks_log_only(run: Run) -> None:
    _, entry, event = lines(run, 1, rank=0)[0]
    take_in([("west-1", entry, event), ("east-1", entry, {**event, "generation": 9})])
    assert texts(run) == []


@pytest.mark.parametrize(
    "broken",
    [{"id": "7"}, {"id": -1}, {"id": 2**70}, {"t": "noon"}, {"t": 1e300}, {"rank": None}, {"line": None}],
)
def test_a_broken_line_is_left_out_alone(run: Run, broken: dict[str, Any]) -> None:
    good = lines(run, 2)
    node, entry, event = lines(run, 1, first=5)[0]
    take_in([good[0], (node, entry, {**event, **broken}), good[1]])
    assert texts(run)[:2] == ["line 0 of rank 0", "line 1 of rank 0"]


def test_what_postgresql_cannot_hold_is_replaced(run: Run) -> None:
    take_in([("east-1", "1-0", log_event(run, 0, 1, "a\x00b \ud800 c\r\n"))])
    assert texts(run) == ["a\ufffdb ? c"]


def made(count: int) -> list[LogLine]:
    now = datetime.now(UTC)
    run = Run(pk=1)
    return [LogLine(run=run, rank=0, seq=i + 1, at=now, text=str(i)) for i in range(count)]


@given(count=st.integers(0, 60), most=st.integers(3, 20))
def test_a_thinned_flood_accounts_for_every_line(count: int, most: int) -> None:
    flood = made(count)
    thin = logs.thinned(flood, most)
    assert len(thin) == min(count, most)
    assert [line.seq for line in thin] == sorted({line.seq for line in thin})
    own = [line for line in thin if not line.dropped]
    assert len(own) + sum(line.dropped for line in thin) == count
    assert {line.text for line in own} <= {line.text for line in flood}
    if count:
        assert thin[0].text == "0"
        assert thin[-1].text == str(count - 1), "the newest line is the one that explains a failure"
    assert [line.text for line in logs.thinned(flood, most)] == [line.text for line in thin]


def test_a_flood_says_how_much_of_it_is_left_out(run: Run) -> None:
    flood = lines(run, logs.MOST_IN_A_BATCH + 300)
    take_in(flood)
    take_in(flood)
    assert len(texts(run)) == logs.MOST_IN_A_BATCH
    assert f"301 lines left out: {len(flood)} arrived at once" in texts(run)


def test_the_last_lines_of_each_rank_are_kept(run: Run) -> None:
    take_in(lines(run, 30) + lines(run, 5, rank=1))
    assert forget_old_lines(10) == 20
    last_texts = LogLine.objects.filter(run=run, rank=0).order_by("seq").values_list("text", flat=True)
    assert list(last_texts) == [f"line {i} of rank 0" for i in range(20, 30)]
    assert LogLine.objects.filter(run=run, rank=1).count() == 5
    assert forget_old_lines(10) == 0


def ask(client: Any, run: Run, **query: Any) -> dict[str, Any]:
    return json.loads(
        client.get(f"/runs/{run.pk}/logs/", query, headers={"Accept": "application/json"}).content
    )


def test_who_follows_gets_every_line_once_whichever_node_is_late(world: World, run: Run) -> None:
    client = world.client("viewer")
    take_in(lines(run, 3, rank=5, first=1000))
    first = ask(client, run)
    take_in(
        lines(run, 3, rank=0), set()
    )  # of an agent whose clock is behind, or whose lines waited on its disk
    second = ask(client, run, after=first["after"])
    third = ask(client, run, after=second["after"])
    assert [line["rank"] for line in first["lines"]] == [5, 5, 5]
    assert [line["rank"] for line in second["lines"]] == [0, 0, 0]
    assert third["lines"] == []
    assert third["after"] == second["after"]
    assert not third["over"]


def test_a_long_backlog_comes_in_pieces_that_join(
    world: World, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from webapp.live import logs as reading

    monkeypatch.setattr(reading, "MOST", 7)
    take_in(lines(run, 20))
    client, after, got = world.client("viewer"), 0, []
    for _ in range(3):
        answer = ask(client, run, after=after)
        after, got = answer["after"], got + answer["lines"]
    assert [line["text"] for line in got] == [f"line {i} of rank 0" for i in range(20)]
    assert not answer["more"]


@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
def test_search_and_rank_narrow_page_json_and_download_alike(world: World, run: Run) -> None:
    client = world.client("viewer")
    loud = ("mid-1", "1-0", log_event(run, 2, 50, "Out of <b>MEMORY</b> at 100%_"))
    take_in([*lines(run, 5), *lines(run, 5, rank=1), loud])
    assert [line["rank"] for line in ask(client, run, q="memory")["lines"]] == [2]
    assert [line["rank"] for line in ask(client, run, q="0%_")["lines"]] == [2], "% and _ are no wildcards"
    assert {line["rank"] for line in ask(client, run, rank=1)["lines"]} == {1}
    page = client.get(f"/runs/{run.pk}/logs/", {"q": "memory"})
    assert "Out of &lt;b&gt;MEMORY" in page.content.decode()
    whole = b"".join(client.get(f"/runs/{run.pk}/logs.txt")).decode().splitlines()
    assert len(whole) == 11
    some = client.get(page.context["download_url"])
    assert 'filename="run-' in some["Content-Disposition"]
    assert len(b"".join(some).decode().splitlines()) == 1


def test_an_empty_log_says_so_and_nonsense_in_the_query_asks_for_all(world: World, run: Run) -> None:
    client = world.client("viewer")
    assert "No log lines yet" in client.get(f"/runs/{run.pk}/logs/").content.decode()
    take_in(lines(run, 2))
    assert len(ask(client, run, rank="x", after="y")["lines"]) == 2
    assert "No line matches" in client.get(f"/runs/{run.pk}/logs/", {"q": "zebra"}).content.decode()


def test_the_page_costs_the_same_with_many_lines(world: World, run: Run) -> None:
    client = world.client("viewer")

    def queries() -> int:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(f"/runs/{run.pk}/logs/").status_code == 200
        return len(captured)

    take_in(lines(run, 3))
    few = queries()
    take_in(lines(run, 150, rank=1))
    assert queries() == few


def test_what_an_agent_dropped_is_a_mark_on_its_runs_told_once(world: World, run: Run) -> None:
    def beat(lost: Any) -> list[str]:
        take_in([("mid-1", "1790000000000-0", {"kind": "heartbeat", **EXAMPLES["heartbeat"], "lost": lost})])
        marks = RunEvent.objects.filter(run=run, level="warn").order_by("seq")
        return [mark.text.split(":")[0] for mark in marks]

    first, more, again = (f"Node mid-1 dropped {n} spans and log lines" for n in ("7", "1,000", "3"))
    assert beat(0) == []
    assert beat(7) == [first]
    assert beat(7) == [first]
    assert beat(1007) == [first, more]
    assert beat("many") == [first, more]
    assert beat(3) == [first, more, again], "a new agent counts from its own start"
    assert Run.objects.get(pk=run.pk).mark_seq == RunEvent.objects.filter(run=run).count()
