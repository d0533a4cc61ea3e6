"""The forms that a page shows, as a browser reads them, and values that people and programs send to them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from itertools import pairwise
from urllib.parse import urlencode

Data = dict[str, list[str]]

STEM = 4  # letters that names of one kind begin or end with: port_from, port_to; latitude, longitude
HUGE = "9" * 400
HALF = "\ud83d"  # the first half of a smiley: sent as the three bytes that it would be in UTF-8
TEXTS = ("", " ", "-1", HUGE, "x" * 10_000, "\0", f"a{HALF}b", "<b>&\"'")
NUMBERS = ("", "0", "-1", HUGE, "1e400", "nan", "1.5", "x", "\0")
CHOICES = ("", "0", "-1", HUGE, "x", "\0")
# Documents that are none, or that no database keeps.
DOCUMENTS = (
    "{",
    "[]",
    "{}",
    '{"stages": "\\ud83d"}',
    '{"\\u0000": 1}',
    "[" * 5_000,
    "a: &a [*a]",
    "x: 1e999",
)


@dataclass
class Control:
    """An input, select or textarea: its name, type, first values and, of a choice, the options."""

    name: str
    type: str
    values: list[str] = field(default_factory=list)
    options: list[str] = field(default_factory=list)
    least: str = ""
    required: bool = False

    @property
    def chooses(self) -> bool:
        return self.type in ("select", "radio", "checkbox")


@dataclass
class PageForm:
    """A form of a page: its method, its action ("" is the page itself) and its controls in order."""

    method: str
    action: str
    controls: dict[str, Control] = field(default_factory=dict)

    @property
    def sent(self) -> Data:
        """What the form sends as it is first shown."""
        return {name: list(control.values) for name, control in self.controls.items() if control.values}


class Reader(HTMLParser):
    """Collects the forms of a page in `forms`."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[PageForm] = []
        self._open: PageForm | None = None
        self._control: Control | None = None  # a select or textarea whose inside is read

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._open = PageForm(given.get("method", "get").lower(), given.get("action", ""))
            self.forms.append(self._open)
        elif self._open is None:
            return
        elif tag == "option" and self._control is not None:
            self._control.options.append(given.get("value", ""))
            if "selected" in given:
                self._control.values.append(given.get("value", ""))
        elif tag in ("input", "select", "textarea", "button") and given.get("name"):
            self._take(self._open, tag, given)

    def _take(self, form: PageForm, tag: str, given: dict[str, str]) -> None:
        kind = given.get("type", "text") if tag == "input" else tag
        control = form.controls.setdefault(given["name"], Control(given["name"], kind))
        control.required |= "required" in given
        control.least = given.get("min", control.least)
        if tag in ("select", "textarea"):
            self._control = control
        elif kind in ("checkbox", "radio"):
            control.options.append(given.get("value", "on"))
            if "checked" in given:
                control.values.append(given.get("value", "on"))
        elif tag == "input":
            control.values.append(given.get("value", ""))

    def handle_data(self, data: str) -> None:
        if self._control is not None and self._control.type == "textarea":
            self._control.values = ["".join([*self._control.values, data])]

    def handle_endtag(self, tag: str) -> None:
        if tag == "form":
            self._open = None
        elif tag in ("select", "textarea"):
            control, self._control = self._control, None
            if control is not None and tag == "select" and not control.values:
                control.values = control.options[:1]
            if control is not None and tag == "textarea":
                control.values = [text.removeprefix("\n") for text in control.values or [""]]


def forms_of(page: str) -> list[PageForm]:
    """The forms of an HTML page."""
    reader = Reader()
    reader.feed(page)
    return reader.forms


def encoded(data: Data) -> str:
    """`data` as a browser sends it."""
    return urlencode(data, doseq=True, errors="surrogatepass")


def kept(text: str) -> str:
    """`text` as it is received: a half of a smiley is three bytes that cannot be read."""
    return text.replace(HALF, "\ufffd" * 3)


def values_for(control: Control, foreign: list[str]) -> tuple[str, ...]:
    """What is sent in one field. foreign : ids of rows of others, and of none."""
    if control.type in ("number", "range"):
        return NUMBERS
    if control.chooses:
        return (*CHOICES, *foreign)
    if control.type != "hidden":
        return TEXTS
    holds_document = any(value.startswith("{") for value in control.values)
    return (*TEXTS, *(DOCUMENTS if holds_document else foreign))


def hostile(form: PageForm, foreign: list[str]) -> Iterator[tuple[tuple[str, ...], Data]]:
    """(changed fields, what to send besides): each field with each hostile value, then pairs of one kind."""
    for control in form.controls.values():
        if control.name == "csrfmiddlewaretoken":
            continue
        for value in values_for(control, foreign):
            yield (control.name,), {control.name: [value]}
        yield (control.name,), {control.name: []}
        yield (control.name,), {control.name: [*control.values, *control.values, *control.options[:1] * 2]}
        for other in form.controls.values() if control.type == "textarea" else ():
            for option in other.options[:8]:
                for text in DOCUMENTS:
                    yield (control.name,), {control.name: [text], other.name: [option]}
    controls = [c for c in form.controls.values() if c.name != "csrfmiddlewaretoken"]
    for first, second in pairwise(controls):
        if _of_one_kind(first, second):
            same = second.options[:3] if first.chooses else ("0", "x")
            pairs = [(value, value) for value in same] + [("2000", "1"), ("", "1"), ("1", "")]
            for pair in pairs:
                yield (first.name, second.name), {first.name: [pair[0]], second.name: [pair[1]]}


def _of_one_kind(first: Control, second: Control) -> bool:
    """Whether two fields are ends of one thing: the same choice twice, or names of one stem."""
    if first.type != second.type or first.type == "checkbox":
        return False
    if first.chooses:
        return first.options == second.options
    stems = first.name[:STEM] == second.name[:STEM], first.name[-STEM:] == second.name[-STEM:]
    return any(stems)
