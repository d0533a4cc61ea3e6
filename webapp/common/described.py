"""Labels and a note: what a team writes on the things that it makes, to find them again and to tell why."""

from __future__ import annotations

import re
from typing import Any

import django_filters as filters
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import QuerySet

from webapp.common.archived import ArchivedFilterSet

MOST_LABELS = 10
LONGEST_LABEL = 30
LONGEST_NOTE = 2_000
MOST_OFFERED = 500  # labels that a filter lists
_LABEL = re.compile(r"[^\W_][\w.-]*")


class Described(models.Model):
    """What people can put labels and a note on. It has a `team`.

    labels : words in small letters, in order, a space between them: the site's search reads columns of text.
    """

    labels = models.CharField(max_length=MOST_LABELS * (LONGEST_LABEL + 1), blank=True, default="")
    note = models.TextField(max_length=LONGEST_NOTE, blank=True, default="")

    class Meta:
        abstract = True

    @property
    def label_list(self) -> list[str]:
        """Its labels one by one."""
        return self.labels.split()


def labelled(row: Described) -> str:
    """Its labels behind what else is said of a row: ", baseline, lr-sweep"; empty where it has none."""
    return "".join(f", {label}" for label in row.label_list)


def parsed_labels(text: str) -> str:
    """Labels as they are kept, from what a person typed: words with spaces or commas between them.

    Raises
    ------
    ValidationError
        One is no word or too long, or there are too many.
    """
    words = sorted(set(text.lower().replace(",", " ").split()))
    for word in words:
        if not _LABEL.fullmatch(word):
            allowed = "letters, digits and . _ -, beginning with a letter or digit"
            raise ValidationError(f"“{word[:LONGEST_LABEL]}” is no label: use {allowed}.")
        if len(word) > LONGEST_LABEL:
            message = (
                f"“{word[:LONGEST_LABEL]}…” is too long: a label has at most {LONGEST_LABEL} characters."
            )
            raise ValidationError(message)
    if len(words) > MOST_LABELS:
        raise ValidationError(f"These are {len(words)} labels; at most {MOST_LABELS} are allowed.")
    return " ".join(words)


class DescribedFilterSet(ArchivedFilterSet):
    """A filter of rows with labels: it offers those that the rows have."""

    label = filters.ChoiceFilter(method="with_label", label="Label", choices=())

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        used = self.queryset.exclude(labels="").order_by().values_list("labels", flat=True).distinct()
        words = sorted({word for labels in used[:MOST_OFFERED] for word in labels.split()})
        self.filters["label"].extra["choices"] = [(word, word) for word in words]

    def with_label(self, rows: QuerySet[Any], name: str, label: str) -> QuerySet[Any]:
        """Rows with this very label."""
        return rows.filter(labels__regex=rf"(^| ){re.escape(label)}( |$)")
