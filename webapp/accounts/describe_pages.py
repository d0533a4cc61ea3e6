"""The form with the labels and the note of one thing: the same for every kind."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django import forms
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import URLPattern, path, reverse

from webapp.accounts.permissions import require, visible_or_404
from webapp.accounts.services.describing import describe
from webapp.common.described import LONGEST_NOTE, MOST_LABELS, parsed_labels
from webapp.common.editing import EditForm
from webapp.common.formkit import form_page


class NoteField(forms.CharField):
    """Text of several lines; a line's end counts as one character, as browsers count it."""

    widget = forms.Textarea

    def to_python(self, value: Any) -> Any:
        """The text with its lines ended by LF alone."""
        text = super().to_python(value)
        return text.replace("\r\n", "\n") if text else text


class DescribeForm(EditForm):
    labels = forms.CharField(
        max_length=1_000,
        required=False,
        help_text=f"Short words with spaces between them, such as baseline lr-sweep; at most {MOST_LABELS}.",
    )
    note = NoteField(max_length=LONGEST_NOTE, required=False, help_text="Plain text.")

    def clean_labels(self) -> str:
        """The labels as they are kept."""
        return parsed_labels(self.cleaned_data["labels"])


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribePage:
    """The address that edits the labels and the note of one thing.

    address : what the names of the addresses begin with, as "planning:plan": there is its -detail.
    rows : those of the kind, with their teams.
    """

    address: str
    rows: Callable[[], Any]

    def url(self) -> URLPattern:
        """Below the kind's list."""
        return path("<int:pk>/describe/", self.page, name=f"{self.address.partition(':')[2]}-describe")

    @transaction.atomic
    def page(self, request: HttpRequest, pk: int) -> HttpResponse:
        thing = visible_or_404(self.rows(), request.user, pk=pk)
        require(request.user, thing.team)
        form_class = forms.modelform_factory(type(thing), form=DescribeForm, fields=["labels", "note"])
        form = form_class(request.POST or None, instance=thing)
        if request.method == "POST" and form.is_valid():
            values = form.cleaned_data
            describe(request.user, thing, labels=values["labels"], note=values["note"])
            return redirect(f"{self.address}-detail", pk=pk)
        title, back = f"Labels and note of {thing}", reverse(f"{self.address}-detail", args=[pk])
        return form_page(request, form, title, back=back, crumbs=[(str(thing), back)])
