"""The one reader of documents: JSON or YAML from a user, a file or another process, within bounds.

The bounds are counts. Each stops the reading before more work is done than they stand for: bytes before
anything is parsed, the others while it is. Aliases and merge keys of YAML count as what they stand for.
"""

import errno
import json
import re
import sys
from pathlib import Path
from typing import IO, Any

import yaml
from yaml.composer import Composer
from yaml.constructor import SafeConstructor
from yaml.events import AliasEvent, CollectionStartEvent
from yaml.parser import Parser
from yaml.reader import Reader
from yaml.resolver import Resolver
from yaml.scanner import Scanner

from engine.errors import InputError, reason_of

# Two matrices of 1,024 x 1,024 devices (`meridian place`) are 41 MB and 2.1 million entries.
MOST_BYTES = 48 << 20
MOST_LINES_BYTES = 256 << 20  # of a file of which each line is a document
MOST_VALUES = 2_500_000  # entries of lists and objects, at any depth
MOST_DEPTH = 100  # lists and objects in each other
# Reading YAML takes a hundred times as long as reading JSON.
MOST_YAML_BYTES = 1 << 20
MOST_YAML_VALUES = 100_000  # values and names
MOST_NUMBER = 400  # characters of a number in YAML: a time such as 1:00:00:… takes their square

_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"')
_SURROGATE = re.compile("[\ud800-\udfff]")
_NO_TEXT = "text with NUL or with half of a surrogate pair"
_DIRECTIVE = re.compile(r"^%", re.MULTILINE)


def load_document(source: str | Path) -> Any:
    """Return the JSON or YAML value in the file `source`, or on standard input where it is ``-``.

    Raises
    ------
    InputError
        The file is missing or unreadable, or its text is refused by `read_document`.
    """
    try:
        text = _standard_input() if str(source) == "-" else read_text(Path(source), most_bytes=MOST_BYTES)
    except (OSError, ValueError) as error:
        raise InputError("FILE", str(source), f"cannot be read ({reason_of(error)})") from None
    return read_document(text, str(source))


def _standard_input() -> str:
    if sys.stdin is None:  # closed by the shell: <&-
        raise OSError(errno.EBADF, "it is closed")
    # UTF-8 as in files, whatever the locale says.
    return _text(sys.stdin.buffer, MOST_BYTES) if hasattr(sys.stdin, "buffer") else sys.stdin.read()


def read_text(path: Path, *, most_bytes: int = MOST_LINES_BYTES) -> str:
    """Return the text of a file, without a byte order mark.

    Raises
    ------
    OSError
        It cannot be read.
    ValueError
        It is larger, or (a UnicodeDecodeError) not UTF-8.
    """
    with path.open("rb") as file:
        return _text(file, most_bytes)


def _text(file: IO[bytes], most_bytes: int) -> str:
    data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise ValueError(f"more than {most_bytes:,} bytes")
    return data.decode("utf-8-sig")


def read_json(data: str | bytes | bytearray, *, most_bytes: int = MOST_BYTES) -> Any:
    """Return the JSON value of a message whose fields are checked next.

    Parameters
    ----------
    most_bytes : of `data`; characters where it is text.

    Raises
    ------
    ValueError
        It is longer, is not JSON, or is nested deeper than Python reads.
    """
    if len(data) > most_bytes:
        raise ValueError(f"more than {most_bytes:,} bytes")
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def read_json_file(file: IO[bytes], *, most_bytes: int = MOST_BYTES) -> Any:
    """As `read_json`, of what an open file or the answer of a server still holds. Raises OSError as well."""
    return read_json(file.read(most_bytes + 1), most_bytes=most_bytes)


def read_document(text: str, source: str, *, as_yaml: bool = True) -> Any:
    """Return the JSON or YAML value that `text` is; `source` names it in errors.

    It holds what JSON can: no dates, bytes or sets. Each field is there once. `as_yaml`: False takes JSON
    alone.

    Raises
    ------
    InputError
        The text is neither, or passes a bound of this module.
    """
    if len(text) > MOST_BYTES or len(text.encode(errors="surrogatepass")) > MOST_BYTES:
        raise InputError("FILE", source, f"too large: at most {MOST_BYTES:,} bytes")
    _require_few(text, source)
    try:
        value = json.loads(text, object_pairs_hook=_once_each)
    except json.JSONDecodeError as json_error:
        where = f"{json_error.msg} at line {json_error.lineno} column {json_error.colno}"
        if not as_yaml:
            raise InputError("FILE", source, f"not JSON: {where}") from None
        return _yaml(text, source, where)
    except RecursionError:
        raise _too_deep(source) from None
    except InputError:
        raise
    except ValueError as error:  # an integer of more digits than Python reads
        raise InputError("FILE", source, f"not readable: {str(error).partition(';')[0]}") from None
    _require_readable(value, source)
    return value


def _too_deep(source: str) -> InputError:
    return InputError("FILE", source, f"nested too deeply: at most {MOST_DEPTH} levels")


def _require_few(text: str, source: str) -> None:
    """Refuse JSON of too many values before any of them is made: each takes some fifty times its bytes."""
    if _marks(text) > MOST_VALUES and _marks(_STRING.sub("", text)) > MOST_VALUES:
        raise InputError("FILE", source, f"too many values: at most {MOST_VALUES:,}")


def _marks(text: str) -> int:
    """Every value but the first of all stands behind one of these."""
    return text.count(",") + text.count("[") + text.count("{")


def _require_readable(value: Any, source: str) -> None:
    """Refuse JSON that is nested too deeply, and text that no file or database can hold."""
    level, depth = [value], 0
    while level:
        deeper: list[Any] = []
        for part in level:
            if isinstance(part, str):
                if not _is_text(part):
                    raise InputError(_place_of_bad_text(value), part, f"must not be {_NO_TEXT}")
            elif depth == MOST_DEPTH and isinstance(part, dict | list):
                raise _too_deep(source)
            elif isinstance(part, dict):
                deeper += part
                deeper += part.values()
            elif isinstance(part, list):
                deeper += part
        level, depth = deeper, depth + 1


def _place_of_bad_text(value: Any) -> str:
    """Where in the document the text stands: the path of its value, or of the object that it names one of."""
    waiting = [("", value)]
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, dict):
            if not all(map(_is_text, part)):
                break
            waiting += [(f"{path}.{name}".lstrip("."), inner) for name, inner in part.items()]
        elif isinstance(part, list):
            waiting += [(f"{path}[{index}]", inner) for index, inner in enumerate(part)]
        elif isinstance(part, str) and not _is_text(part):
            break
    return path or "document"


def _is_text(text: str) -> bool:
    return "\0" not in text and (text.isascii() or _SURROGATE.search(text) is None)


def _once_each(pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
    """An object of `pairs`; a field that is there twice is an error, as one of the two would be lost."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        seen: set[Any] = set()
        # The first that comes again: looking for each one among all others would take their square.
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise InputError(str(twice), fields[twice], "is given twice; give it once")
    return fields


class _Refused(yaml.MarkedYAMLError):
    """YAML that is well formed, but past a bound or not in JSON's terms."""


_PREFIX = "tag:yaml.org,2002:"
_TAGS = {_PREFIX + name for name in ("null", "bool", "int", "float", "str", "seq", "map", "merge")}
_NAMES = {_PREFIX + "str", _PREFIX + "merge"}
_NUMBERS = {_PREFIX + "int", _PREFIX + "float"}


class _PythonParser(Reader, Scanner, Parser):
    """As libyaml's, which finds the events twenty times as fast; there are platforms without it."""

    def __init__(self, text: str) -> None:
        Reader.__init__(self, text)
        Scanner.__init__(self)
        Parser.__init__(self)


_Parser: Any = yaml.cyaml.CParser if yaml.__with_libyaml__ else _PythonParser  # type: ignore[attr-defined]


class _Loader(Composer, _Parser, SafeConstructor, Resolver):
    """YAML as JSON has it: names are text, and none is given twice (what `<<` merges may be overridden).

    Nothing is made of a document before all of it was counted, with each alias as what it stands for.
    """

    def __init__(self, text: str) -> None:
        _Parser.__init__(self, text)
        for base in (Composer, SafeConstructor, Resolver):
            base.__init__(self)
        self._depth = self._deepest = self._values = 0
        self._seen: dict[int, tuple[int, int]] = {}  # by id of a node with an anchor: its values, its height

    def compose_node(self, parent: Any, index: Any) -> Any:
        """As Composer's, counted."""
        event = self.peek_event()
        before, above = self._values, self._deepest
        self._deepest = self._depth + isinstance(event, CollectionStartEvent)
        self._count(1, event)
        self._depth += 1
        node: Any = super().compose_node(parent, index)
        self._depth -= 1
        if isinstance(event, AliasEvent):
            if id(node) not in self._seen:
                raise _refused("an alias contains itself", event)
            values, height = self._seen[id(node)]
            self._deepest = self._depth + height
            self._count(values - 1, event)
        else:
            _require_plain(node)
            if event.anchor is not None:
                self._seen[id(node)] = self._values - before, self._deepest - self._depth
        self._deepest = max(self._deepest, above)
        return node

    def _count(self, values: int, event: Any) -> None:
        self._values += values
        if self._values > MOST_YAML_VALUES:
            most = f"too large for YAML; write JSON: more than {MOST_YAML_VALUES:,} values, aliases followed,"
            raise _refused(most, event)
        if self._deepest > MOST_DEPTH:
            raise _refused(f"nested too deeply: at most {MOST_DEPTH} levels", event)


def _refused(why: str, where: Any) -> _Refused:
    return _Refused(problem=why, problem_mark=where.start_mark)


def _require_plain(node: yaml.Node) -> None:
    """Raises _Refused where JSON has no such value, InputError where a name is there twice."""
    if node.tag not in _TAGS:
        date = "a date; put it in quotes"
        what = date if node.tag == _PREFIX + "timestamp" else f"a value with tag {node.tag[:100]}"
        raise _refused(f"not readable: {what}", node)
    if isinstance(node, yaml.MappingNode):
        for name, _ in node.value:
            # Numbers as names can be made to fall into one place of a table, and each search takes all of it.
            if not isinstance(name, yaml.ScalarNode) or name.tag not in _NAMES:
                raise _refused("not readable: a name that is not text; put it in quotes", name)
        _once_each([(name.value, value.start_mark.line + 1) for name, value in node.value])
    elif isinstance(node, yaml.ScalarNode):
        if node.tag in _NUMBERS and len(node.value) > MOST_NUMBER:
            raise _refused(f"not readable: a number of more than {MOST_NUMBER} characters", node)
        if not _is_text(node.value):
            raise _refused(f"not readable: {_NO_TEXT}", node)


# What PyYAML lets through: an integer too long, a tag that the value does not fit.
BAD_VALUES = (ValueError, LookupError, TypeError, AttributeError)


def _yaml(text: str, source: str, json_problem: str) -> Any:
    json_meant = text.lstrip()[:1] in ("{", "[")
    if len(text) > MOST_YAML_BYTES or len(text.encode(errors="replace")) > MOST_YAML_BYTES:
        why = json_problem if json_meant else f"at most {MOST_YAML_BYTES:,} bytes as YAML; write JSON"
        raise InputError("FILE", source, f"{'not JSON' if json_meant else 'too large'}: {why}")
    if _DIRECTIVE.search(text):  # each is compared with all others
        raise InputError("FILE", source, "not JSON or YAML: a line that begins with %")
    try:
        return _loaded(text)
    except RecursionError:
        raise _too_deep(source) from None
    except InputError:
        raise
    except _Refused as error:
        mark = error.problem_mark
        where = f" at line {mark.line + 1} column {mark.column + 1}" if mark else ""
        raise InputError("FILE", source, f"{error.problem}{where}") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = json_problem
        if mark is not None and not json_meant:
            what = getattr(error, "problem", error)
            problem = f"{what} at line {mark.line + 1} column {mark.column + 1}"
        raise InputError("FILE", source, f"not JSON or YAML: {problem}") from None
    except BAD_VALUES as error:
        raise InputError("FILE", source, f"not readable: {str(error).partition(';')[0]}") from None


def _loaded(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()
