"""Edits that know what they began from: what somebody changed since is not overwritten without a word."""

import json
from typing import Any

from django import forms
from django.db import connection, models

from engine.documents import read_json

BEGAN = "began_from"


class EditForm(forms.ModelForm):
    """A form that changes a row carries the values that the row had when the form was opened.

    Where another edit has changed one of them since, the form is refused: the field says the value that the
    row has now and the one that was entered, and sending it once more means it. The view holds a transaction,
    so that of two edits at once the second sees the first.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.instance.pk is not None:
            began = json.dumps(self._values(self.instance))
            self.fields[BEGAN] = forms.CharField(
                required=False, widget=forms.HiddenInput, initial=began, max_length=100_000
            )

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or {}
        if began := _object(cleaned.pop(BEGAN, "")):
            self._refuse_overtaken(began, cleaned)
        return cleaned

    def _refuse_overtaken(self, began: dict[str, Any], cleaned: dict[str, Any]) -> None:
        rows: Any = type(self.instance)._default_manager
        if connection.in_atomic_block:
            rows = rows.select_for_update(of=("self",))
        now = rows.get(pk=self.instance.pk)
        values = self._values(now)
        shared = began.keys() & cleaned.keys()
        for name in (name for name in values if name in shared and values[name] != began[name]):
            field = self._model_field(name)
            entered = type(self.instance)(**{field.name: cleaned[name]})
            if getattr(entered, field.attname) != getattr(now, field.attname):
                message = (
                    f"Somebody changed this to {_told(now, field)}. You entered {_told(entered, field)}."
                )
                self.add_error(name, f"{message} Save again to replace it.")
        if self.errors:
            form_data: Any = self.data
            data = form_data.copy()  # what is sent once more begins from what was just told
            data[self.add_prefix(BEGAN)] = json.dumps(values)
            self.data = data

    def _values(self, row: models.Model) -> dict[str, str]:
        """The values of the fields that can be changed, as text."""
        return {
            name: self._model_field(name).value_to_string(row)
            for name in self._meta.fields or ()
            if name in self.fields and not self.fields[name].disabled
        }

    def _model_field(self, name: str) -> Any:
        return self._meta.model._meta.get_field(name)


def overtaken(began: str, now: str, message: str, entered: str) -> str:
    """Why a form of one value is refused, as a sentence; empty where it is not.

    began : what the form began from; empty where it did not say.
    told, entered : the value now, and the one that was sent, as people read them.
    """
    if not began or began == now:
        return ""
    return f"Somebody changed this to {message}. You entered {entered}. Send it again to replace it."


def _object(text: str) -> dict[str, Any]:
    """What the form says it began from; nothing where that is no such text."""
    try:
        document = read_json(text or "{}")
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _told(row: models.Model, field: Any) -> str:
    """A value as people read it."""
    if field.choices:
        return str(getattr(row, f"get_{field.name}_display")())
    value = getattr(row, field.name)
    return "nothing" if value in (None, "") else f"{value:g}" if isinstance(value, float) else str(value)
