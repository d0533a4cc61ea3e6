"""Archiving: what a team has put away is kept whole and stays out of lists until somebody asks for it."""

from __future__ import annotations

from typing import Any

import django_filters as filters
from django import forms
from django.db import models
from django.db.models import QuerySet


class Archivable(models.Model):
    """What a team makes and may put away: plans, computations, runs. It has a `team`."""

    archived_at = models.DateTimeField(null=True, editable=False)

    class Meta:
        abstract = True

    @property
    def busy(self) -> str:
        """Why it can be neither archived nor deleted now, as a sentence; empty where it can."""
        return ""


def dated(row: Any) -> str:
    """When an archivable row was made, and whether it is archived: "2026-11-26, archived"."""
    return f"{row.created_at:%Y-%m-%d}{', archived' if row.archived_at else ''}"


class ArchivedFilterSet(filters.FilterSet):
    """A filter of archivable rows: without `archived` it hides those that are archived."""

    archived = filters.BooleanFilter(
        field_name="archived_at",
        lookup_expr="isnull",
        exclude=True,
        label="Archived",
        widget=forms.CheckboxInput,
    )

    def filter_queryset(self, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """As the filters say; an `archived` that is no answer hides them too."""
        self.form.cleaned_data["archived"] = bool(self.form.cleaned_data.get("archived"))
        return super().filter_queryset(queryset)
