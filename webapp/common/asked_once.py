"""Idempotency keys: what a form that is sent twice asks for is made once."""

import secrets
from collections.abc import Callable
from typing import Any, TypeVar

from django import forms
from django.db import connection, models

from engine.errors import InputError

LONGEST_KEY = 64
Made = TypeVar("Made", bound=models.Model)


def fresh_key() -> str:
    """A key for a form."""
    return secrets.token_urlsafe(24)


def key_field(form: forms.BaseForm) -> None:
    """Give `form` a hidden key, fresh each time that it is shown empty."""
    form.fields["idempotency_key"] = forms.CharField(
        max_length=LONGEST_KEY, required=False, widget=forms.HiddenInput, initial=fresh_key
    )


def asked_once(what: str) -> models.UniqueConstraint:
    """The constraint of a table called `what`: one row for each key that somebody has sent."""
    return models.UniqueConstraint(
        fields=["created_by", "idempotency_key"],
        condition=~models.Q(idempotency_key=""),
        name=f"{what}_asked_once",
    )


def once(actor: Any, rows: "models.QuerySet[Made]", key: str, make: Callable[[], Made]) -> Made:
    """The one of `rows` that `actor` asked for with `key` before, else a new one; two at once get the same.

    To be called in a transaction: a second request waits for the end of the first's.

    Raises InputError where the key is too long or not printable.
    """
    if not key:
        return make()
    if len(key) > LONGEST_KEY or not key.isprintable():
        raise InputError("idempotency_key", key[:80], f"at most {LONGEST_KEY} printable characters")
    lock = f"{rows.model._meta.label} {actor.pk} {key}"
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [lock])
    return rows.filter(created_by=actor, idempotency_key=key).first() or make()
