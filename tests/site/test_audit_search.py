"""The audit's text search: the index finds what reading every row finds, and is what PostgreSQL uses."""

import random
from typing import Any

import pytest
from django.db import connection

from tests.site.house import House
from webapp.accounts import models
from webapp.accounts.models import AuditEntry

WORDS = ("Straße", "gpt-7b", "GPT-70B", "50% off", "a_b", "ab", "x", "", "éà", "q\\n", "Ünï", "price of GPUs")


def entries(seed: int, count: int) -> list[AuditEntry]:
    chance = random.Random(seed)

    def text(most: int) -> str:
        return " ".join(chance.choice(WORDS) for _ in range(chance.randint(0, most)))

    return AuditEntry.objects.bulk_create(
        AuditEntry(
            verb="change",
            object_type="run",
            object_id=str(i),
            object_label=text(2),
            message=text(4),
            request_id=chance.choice(("", "req-1", "price")),
        )
        for i in range(count)
    )


@pytest.mark.parametrize("most", [0, 5, 2000])
def test_the_index_finds_what_reading_every_row_finds(
    house: House, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "MOST_CANDIDATES", most)
    chance = random.Random(most)
    for row in (written_rows := entries(7, 80)):
        row.refresh_from_db()
    searches = [*WORDS, "7b g", "%", "_", "\\", "STRA", "üNÏ", "price", "req-1", "f gpu", "no such thing"]
    searches += [chance.choice(written_rows).message[i : i + 4] for i in range(12)]
    for text in filter(None, searches):
        wanted = {
            row.pk
            for row in written_rows
            if text.upper() in row.object_label.upper()
            or text.upper() in row.message.upper()
            or text == row.request_id
        }
        assert set(AuditEntry.objects.search(text).values_list("pk", flat=True)) == wanted, text


def test_a_search_reads_the_index(house: House) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(
            "EXPLAIN SELECT id FROM accounts_auditentry"
            " WHERE accounts_trigrams(object_label, message) @> accounts_trigrams('east', '')"
        )
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "accounts_auditentry_trigrams" in plan


def test_a_search_shows_nothing_of_other_teams(world: Any) -> None:
    entries(3, 40)  # of no team: a superuser's to see
    page = world.client("stranger").get("/audit/?q=gpt")
    assert page.status_code == 200
    assert "gpt-7b" not in page.content.decode()
