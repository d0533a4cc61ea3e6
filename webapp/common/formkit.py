"""What our forms share: sections for the page, and errors of services and engine at their fields."""

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any, ClassVar

from django import forms
from django.core.exceptions import ValidationError
from django.forms.utils import flatatt
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.choices import BaseChoiceIterator
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst

from engine.errors import InputError
from engine.schedule.registry import SENTENCES, name_of

Section = tuple[str, str, list[str]]  # title, note, field names


class Sectioned(forms.BaseForm):
    """A form whose fields are shown in titled sections, as `layout` names them.

    FIELD_OF : the form's field for a section or a field of the engine's document, if its name differs.
    FOLDED : sections that are folded away: title → the line under which they are. Under a line of its own
        title a section says there what is set in it.
    ALONE : fields that mean something without the first field of their section.
    """

    layout: list[Section] = []
    FOLDED: ClassVar[dict[str, str]] = {}
    FIELD_OF: ClassVar[dict[str, str]] = {}
    ALONE: ClassVar[tuple[str, ...]] = ()

    @property
    def sections(self) -> list[dict[str, Any]]:
        """[{title, note, fields}] of the fields that the form has; of folded sections
        {fold, parts: [{title, note, fields}], open, said}.
        """
        groups: list[dict[str, Any]] = []
        for title, note, names in self.layout:
            fields = [self[name] for name in names if name in self.fields]
            if all(field.is_hidden for field in fields):
                continue
            section, fold = {"title": title, "note": note, "fields": fields}, self.FOLDED.get(title)
            if fold is None:
                groups.append(section)
            elif groups and groups[-1].get("fold") == fold:
                groups[-1]["parts"].append(section)
            else:
                groups.append({"fold": fold, "parts": [section]})
        for group in (one for one in groups if "fold" in one):
            fields = [field for part in group["parts"] for field in part["fields"]]
            says = group["fold"] == group["parts"][0]["title"]
            group["said"] = self._set_in(fields) if says else ""
            group["open"] = any(field.errors for field in fields) or (
                not says and any(map(_is_changed, fields))
            )
        return groups

    def _set_in(self, fields: list[forms.BoundField]) -> str:
        """What is set in the fields of a section, in a line."""
        if _is_empty(fields[0].value()):
            fields = [field for field in fields if field.name in self.ALONE]
        return "; ".join(filter(None, map(_set_to, fields))) or "none"

    def take_errors(self, error: ValidationError) -> None:
        """Show a service's ValidationError: at its fields where the form has them, else on top."""
        for field, messages in (
            error.message_dict if hasattr(error, "error_dict") else {"": error.messages}
        ).items():
            shown = field if field in self.fields else None
            for message in messages:
                self.add_error(shown, message)

    def take_input_error(self, error: InputError) -> None:
        """Show the engine's refusal at the field that it is about, else on top."""
        path = error.field.partition("[")[0]
        last = error.field.rpartition(".")[2].partition("[")[0]
        first = path.partition(".")[0]
        known = (self.FIELD_OF.get(part, "") for part in (last, first))
        names = (path.replace(".", "_"), last, first, *known)
        name = next((name for name in names if name in self.fields), "")
        if name:
            self.add_error(name, f"{capfirst(error.allowed)}.")
        else:
            self.add_error(None, str(error))


def form_page(
    request: HttpRequest,
    form: Any,
    title: str,
    *,
    back: str,
    crumbs: Sequence[tuple[str, str]],
    submit: str = "Save",
) -> HttpResponse:
    """The page of a form, with what is wrong in it (422). back : where Cancel leads."""
    context = {
        "title": title,
        "form": form,
        "sections": getattr(form, "sections", []),
        "submit_label": submit,
        "cancel_url": back,
        "crumbs": crumbs,
    }
    return render(request, "components/form.html", context, status=422 if form.errors else 200)


def _is_changed(field: forms.BoundField) -> bool:
    """Whether a field holds something else than in a new form."""
    first, value = field.field.initial, field.value()
    return value != first and field.field.has_changed(first, value)


def _is_empty(value: Any) -> bool:
    return value is None or value is False or value == ""


def _set_to(field: forms.BoundField) -> str:
    value = field.value()
    if _is_empty(value):
        return ""
    if value is True:
        return str(field.label)
    choices = {str(key): str(label) for key, label in getattr(field.field, "choices", ())}
    # Of a choice that is explained, the name before the explanation.
    shown = choices.get(str(value), str(value)).partition(": ")[0]
    return f"{field.label}: {shown}"


def policy_choices(policies: Iterable[str]) -> list[tuple[str, str]]:
    """Policies to choose from: each by its name, with what it does."""
    return [(policy, f"{name_of(policy)}: {SENTENCES[policy]}") for policy in policies]


def limit(form: forms.BaseForm, names: Iterable[str], queryset: Any) -> None:
    """Let the choice fields `names` offer `queryset` only: dropdowns leak what pages hide."""
    for name in names:
        field: Any = form.fields[name]
        field.queryset = queryset
        if field.empty_label:
            field.empty_label = "Choose…"


def _escaped(texts: list[str]) -> list[str]:
    """`texts` as HTML, escaped in one go; NUL, which none can hold, keeps them apart."""
    return escape("\0".join(texts)).split("\0") if texts else []


class PlainSelect(forms.Select):
    """A select whose options are written in one go: Django renders a template for each of a thousand."""

    def render(self, name: str, value: Any, attrs: Any = None, renderer: Any = None) -> SafeString:
        chosen = set(self.format_value(value))
        choices = [("" if key is None else str(key), str(label)) for key, label in self.choices]
        keys, labels = (_escaped([choice[i] for choice in choices]) for i in (0, 1))
        options = [
            f'<option value="{shown}"{" selected" if key in chosen else ""}>{label}</option>'
            for (key, _), shown, label in zip(choices, keys, labels, strict=True)
        ]
        attributes = flatatt(self.build_attrs(self.attrs, {**(attrs or {}), "name": name}))
        return format_html("<select{}>{}</select>", attributes, SafeString("".join(options)))


# The column that `str` of a row is: options are read without making an object of each.
LABELS = {"user": "username", "team": "name", "plan": "name", "datacenter": "name", "tenancy": "name"}


class RowChoices(BaseChoiceIterator):
    """The choices of a ModelChoiceField, read again each time they are asked for."""

    def __init__(self, field: forms.ModelChoiceField) -> None:
        self.field = field

    def __iter__(self) -> Iterator[tuple[Any, Any]]:
        rows = self.field.queryset
        label = LABELS.get(rows.model._meta.model_name or "") if rows is not None else None
        if rows is None or label is None:
            yield from self.field.iterator(self.field)
            return
        if self.field.empty_label is not None:
            yield "", self.field.empty_label
        yield from rows.values_list(self.field.to_field_name or "pk", label)


def plain_selects(form: forms.BaseForm) -> None:
    """Give the selects of `form` whose options may be many the cheap widget."""
    for field in form.fields.values():
        if isinstance(field, forms.ModelChoiceField) and type(field.widget) is forms.Select:
            cheap = PlainSelect(attrs=field.widget.attrs)
            cheap.is_required = field.widget.is_required
            cheap.choices = RowChoices(field)
            field.widget = cheap
