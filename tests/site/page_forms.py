"""The forms that a page shows, as a browser reads them, and values that people and programs send to them."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlencode

Data = dict[str, list[str]]

STEM = 4  # letters that names of one kind begin or end with: port_from, port_to; latitude, longitude
HUGE = "9" * 400
HALF = "\ud83d"  # the first half of a smiley: sent as the three bytes that it would be in UTF-8
TEXTS = ("", " ", "-1", HUGE, "x" * 10_000, "\0", f"a{HALF}b", "<b>&\"'")
NUMBERS = ("", "0", "-1", HUGE, "1e400", "1e-310", "nan", "1.5", "x", "\0")
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
# A few of them, by which all fields of a form can be swept at once: each kind has as many.
FEW_TEXTS = ("\0", "", HUGE, f"a{HALF}b")
FEW_NUMBERS = ("x", "", "1e400", "-1")
FEW_CHOICES = ("\0", "", HUGE, "x")
FEW_DOCUMENTS = ("{", '{"\\u0000": 1}', "[]", '{"stages": "\\ud83d"}')
# What of a template's form is a field, or writes some.
HOLDS_FIELDS = r"<(input|select|textarea)|fields?\.html|\{\{ ?(form|field|filter)"


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

    @property
    def holds_document(self) -> bool:
        return self.type == "hidden" and any(value.startswith("{") for value in self.values)


@dataclass
class PageForm:
    """A form of a page: its method, its action ("" is the page itself) and its controls in order."""

    method: str
    action: str
    controls: dict[str, Control] = field(default_factory=dict)
    name: str = ""  # its id
    others: list[str] = field(default_factory=list)  # actions of buttons that send it elsewhere

    @property
    def fields(self) -> list[Control]:
        """Its controls, without the token that lets it be sent."""
        return [one for one in self.controls.values() if one.name != "csrfmiddlewaretoken"]

    @property
    def sent(self) -> Data:
        """What the form sends as it is first shown."""
        return {name: list(control.values) for name, control in self.controls.items() if control.values}


class Reader(HTMLParser):
    """Collects the forms of a page in `forms`; in `outside` fields that are not in their form, by its id."""

    def __init__(self) -> None:
        super().__init__()
        self.forms: list[PageForm] = []
        self.outside: dict[str, PageForm] = {}
        self._open: PageForm | None = None
        self._control: Control | None = None  # a select or textarea whose inside is read

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "form":
            self._open = PageForm(
                given.get("method", "get").lower(), given.get("action", ""), name=given.get("id", "")
            )
            self.forms.append(self._open)
        elif tag == "option" and self._control is not None:
            self._control.options.append(given.get("value", ""))
            if "selected" in given:
                self._control.values.append(given.get("value", ""))
        elif tag in ("input", "select", "textarea", "button"):
            of = given.get("form")
            form = self.outside.setdefault(of, PageForm("", "")) if of else self._open
            if form is not None and "formaction" in given:
                form.others.append(given["formaction"])
            if form is not None and given.get("name"):
                self._take(form, tag, given)

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
    """The forms of an HTML page; one that a button sends elsewhere is there once for each address."""
    reader = Reader()
    reader.feed(page)
    forms = []
    for form in reader.forms:
        if (more := reader.outside.get(form.name)) is not None:
            form.controls |= {name: one for name, one in more.controls.items() if name not in form.controls}
            form.others += more.others
        forms += [form, *(replace(form, action=action) for action in form.others)]
    return forms


def forms_in_templates(folder: Path) -> dict[str, set[str]]:
    """Template → URL names that its forms with fields are sent to; "" is the address of the page itself."""
    names: dict[str, set[str]] = {}
    for path in folder.rglob("*.html"):
        for attributes, inside in re.findall(r"<form\b(.*?)>(.*?)</form>", path.read_text(), re.S):
            if "data-goto" in attributes or not re.search(HOLDS_FIELDS, inside):
                continue  # a script's own, or a button alone
            named = re.search(r"""action="\{% url '([^']+)'""", attributes)
            name = str(path.relative_to(folder))
            names.setdefault(name, set()).add(named.group(1) if named else "")
    return names


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
    return (*TEXTS, *(DOCUMENTS if control.holds_document else foreign))


def swept(form: PageForm) -> Iterator[Data]:
    """What to send besides: every field with a hostile value, all at once; each time with another."""
    for number in range(len(FEW_TEXTS)):
        yield {control.name: [_few(control)[number]] for control in form.fields}


def one_by_one(form: PageForm) -> Iterator[tuple[tuple[str, ...], Data]]:
    """(changed fields, what to send besides): each field with one value that it refuses, and equal pairs."""
    for control in form.fields:
        yield (control.name,), {control.name: [_few(control)[0]]}
    for first, second in _pairs(form):
        same = second.options[:1] if first.chooses else ["0"]
        yield (first.name, second.name), {first.name: same, second.name: same}


def _few(control: Control) -> tuple[str, ...]:
    if control.type in ("number", "range"):
        return FEW_NUMBERS
    if control.chooses:
        return FEW_CHOICES
    return FEW_DOCUMENTS if control.holds_document else FEW_TEXTS


def hostile(form: PageForm, foreign: list[str]) -> Iterator[tuple[tuple[str, ...], Data]]:
    """(changed fields, what to send besides): each field with each hostile value, then pairs of one kind."""
    for control in form.fields:
        for value in values_for(control, foreign):
            yield (control.name,), {control.name: [value]}
        yield (control.name,), {control.name: []}
        yield (control.name,), {control.name: [*control.values, *control.values, *control.options[:1] * 2]}
        for other in form.controls.values() if control.type == "textarea" else ():
            for option in other.options[:8]:
                for text in DOCUMENTS:
                    yield (control.name,), {control.name: [text], other.name: [option]}
    for first, second in _pairs(form):
        same = second.options[:3] if first.chooses else ("0", "x")
        pairs = [(value, value) for value in same] + [("2000", "1"), ("", "1"), ("1", "")]
        for pair in pairs:
            yield (first.name, second.name), {first.name: [pair[0]], second.name: [pair[1]]}


def _pairs(form: PageForm) -> Iterator[tuple[Control, Control]]:
    return (pair for pair in pairwise(form.fields) if _of_one_kind(*pair))


def _of_one_kind(first: Control, second: Control) -> bool:
    """Whether two fields are ends of one thing: the same choice twice, or names of one stem."""
    if first.type != second.type or first.type == "checkbox":
        return False
    if first.chooses:
        return first.options == second.options
    stems = first.name[:STEM] == second.name[:STEM], first.name[-STEM:] == second.name[-STEM:]
    return any(stems)
