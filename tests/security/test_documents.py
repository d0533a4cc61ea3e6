"""Documents that were made to cost much: each is read within the bounds, or refused in one line."""

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from yaml.constructor import SafeConstructor

from engine import documents
from engine.documents import read_document, read_json
from engine.errors import InputError

KEYS_60_000 = "\n".join(f"k{i}: {i}" for i in range(60_000))
MERGES = "a0: &a0 {x: 1}\n" + "\n".join(
    f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 8)
)
LAUGHS = "a0: &a0 [x]\n" + "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 8))
CHAIN = "a0: &a0 [x]\n" + "\n".join(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 200))
ATTACKS = {
    "many names": (KEYS_60_000, "values, aliases followed"),
    "merge keys in merge keys": (MERGES, "values, aliases followed"),
    "aliases of aliases": (LAUGHS, "values, aliases followed"),
    "deep by aliases": (CHAIN, "nested too deeply"),
    "an alias of itself": ("a: &a [*a]", "contains itself"),
    "a merge of itself": ("a: &a {<<: *a}", "contains itself"),
    "merged twice": ("a: &a {x: 1}\nb: {<<: *a, <<: *a}", "is given twice"),
    "numbers as names, all in one place of a table": (
        "\n".join(f"{i * (2**61 - 1)}: {i}" for i in range(100)),
        "name that is not text",
    ),
    "a list as a name": ("? [a]\n: 1", "name that is not text"),
    "a time of many parts": ("a: 1" + ":59" * 10_000, "more than 400 characters"),
    "a number in hexadecimal": ("a: 0x" + "f" * 10_000, "more than 400 characters"),
    "many directives": ("%TAG !a! x\n" * 1_000 + "---\na", "begins with %"),
    "a date": ("a: 2026-01-01", "a date; put it in quotes"),
    "bytes": ("a: !!binary aGk=", "tag:yaml.org,2002:binary"),
    "a set": ("a: !!set {b}", "tag:yaml.org,2002:set"),
    "ordered pairs": ("a: !!omap [{b: 1}]", "tag:yaml.org,2002:omap"),
    "a tag of Python": ("!!python/object/apply:os.getcwd []", "tag:yaml.org,2002:python"),
    "NUL in YAML": ('a: "\\0"', "text with NUL"),
    "NUL in a name": ('{"a\\u0000": 1}', "text with NUL"),
    "NUL in a value, by its path": ('{"data": {"a": [1, "x\\u0000"]}}', "data.a[1]: 'x"),
    "half of a pair": ('["\\ud800"]', "half of a surrogate pair"),
    "a name twice": ('{"a": [{"b": 1, "b": 2}]}', "is given twice"),
    "deep YAML": ("- " * 1_000 + "x", "nested too deeply"),
    "deep JSON": ("[" * 200 + "]" * 200, "nested too deeply"),
    "deep JSON of objects": ('{"a":' * 100_000, "nested too deeply"),
    "too much YAML": ("# x\n" * 300_000, "at most 1,048,576 bytes as YAML"),
    "too many values": ("[" + "[]," * 2_000_000 + "[]]", "too many values"),
    "too many bytes": (" " * documents.MOST_BYTES + "1", "too large"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_refused_in_one_line(name: str) -> None:
    text, why = ATTACKS[name]
    with pytest.raises(InputError) as refused:
        read_document(text, "document")
    assert why in str(refused.value)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


def test_the_last_of_many_names_that_comes_again_is_found_in_one_pass(monkeypatch: Any) -> None:
    """Each name was looked for among all of them."""
    compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    pairs = [(Name(f"k{i}"), i) for i in range(3_000)]
    with pytest.raises(InputError, match="k2999"):
        documents._once_each([*pairs, (Name("k2999"), 0)])
    assert compared < 30_000, "a table of names compares few of them"


@pytest.mark.parametrize(
    "data", [b"[" * 100_000, b"{", b"\xff", b"1" * 5_000, b'"' + b"x" * 9_000 + b'"', ""]
)
def test_a_message_is_refused_with_one_error(data: bytes | str) -> None:
    with pytest.raises(ValueError, match=r"nested|Expecting|decode|digits|more than 8,000 bytes"):
        read_json(data, most_bytes=200_000 if data[:1] == b"[" else 8_000)


def test_a_message_is_read() -> None:
    assert read_json('{"a": [1]}') == {"a": [1]}


def generated(seed: int, count: int) -> Iterator[str]:
    """Texts of all sorts: mostly well-formed YAML or JSON with anchors, merges, tags; some cut or mixed."""
    dice = random.Random(seed)
    for _ in range(count):
        text = _json(dice) if dice.random() < 0.3 else _block(dice)
        if dice.random() < 0.2:
            at = dice.randrange(len(text) + 1)
            text = text[:at] + dice.choice(PIECES) * dice.choice((0, 1, 1, 30)) + text[at:]
        yield text[: dice.choice((len(text), len(text), dice.randrange(len(text) + 1)))]


MARKS = "[]{}:,-?&*!|>'\"%@`#\t\n\\ \0\x85\u2028\ufeff"
WORDS = ("<<", "- ", "? ", ": ", "\ud800", "---\n", "...", "!!", "\\u0000", "\\ud800", "&a ", "*a", "=", "é")
NUMBERS = ("1e999", "NaN", ".inf", "0x" + "f" * 500, "1:" * 300, "2026-01-01", "~", "%YAML 1.1\n", "\u200b")
PIECES = (*MARKS, *WORDS, *NUMBERS)
PLAIN = ("str", "int", "float", "bool", "null", "map", "seq")
OTHER = ("set", "omap", "pairs", "binary", "timestamp", "merge", "value", "python/name:os")
TAGS = (*(f"!!{name}" for name in (*PLAIN, *OTHER)), "!x", "!<a>")


def _scalar(dice: random.Random) -> str:
    return dice.choice(("x", "1", "-1.5", "true", "null", '"t"', "''", "<<", *PIECES))


def _flow(dice: random.Random, depth: int = 0) -> str:
    kind = dice.random()
    tag = f"{dice.choice(TAGS)} " if dice.random() < 0.05 else ""
    anchor = f"&b{dice.randrange(99)} " if dice.random() < 0.2 else ""
    if kind < 0.15:
        return f"*a{dice.randrange(9)}"
    if depth > 15 or kind < 0.5:
        return tag + anchor + _scalar(dice)
    inner = [_flow(dice, depth + 1) for _ in range(dice.choice((0, 1, 1, 2, 3)))]
    if kind < 0.75:
        return f"{tag}{anchor}[{', '.join(inner)}]"
    names = [dice.choice(("<<", "x", "y", "z", _scalar(dice))) for _ in inner]
    return (
        f"{tag}{anchor}{{{', '.join(f'{name}: {value}' for name, value in zip(names, inner, strict=True))}}}"
    )


def _block(dice: random.Random) -> str:
    """Lines of a mapping, each with an anchor; some stand for earlier ones so often that they multiply."""
    lines = []
    for i in range(dice.randint(1, 9)):
        earlier = ", ".join([f"*a{max(0, i - 1)}"] * dice.choice((1, 1, 2, 9)))
        inner = dice.choice((f"[{earlier}]", f"{{<<: [{earlier}], k{i}: 1}}", "{x: 1}", _flow(dice)))
        lines.append(f"n{i}: &a{i} {inner}" if i else f"n0: &a0 {{x: {_scalar(dice)}}}")
    return "\n".join(lines)


def _json(dice: random.Random) -> str:
    def value(depth: int) -> Any:
        kind = dice.random()
        if depth > 20 or kind < 0.15:
            return dice.choice((None, True, 1, 1.5, "x", "\0", "\ud800", 10**300, float("inf"), "é" * 9))
        if kind < 0.7:
            return [value(depth + 1) for _ in range(dice.choice((0, 1, 1, 2)))]
        return {dice.choice("abcdef"): value(depth + 1) for _ in range(dice.choice((0, 1, 1, 2)))}

    return json.dumps(value(0), ensure_ascii=dice.random() < 0.5)


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_generated_documents_end_within_the_bounds(count: int, monkeypatch: Any) -> None:
    """Small bounds, so that small documents meet them. Counted: nodes composed, pairs that are merged, and
    values of the answer with every alias followed.
    """
    monkeypatch.setattr(documents, "MOST_BYTES", 6_000)
    monkeypatch.setattr(documents, "MOST_YAML_BYTES", 5_000)
    monkeypatch.setattr(documents, "MOST_VALUES", 60)
    monkeypatch.setattr(documents, "MOST_YAML_VALUES", 80)
    monkeypatch.setattr(documents, "MOST_DEPTH", 12)
    composed = merged = 0
    compose, flatten = documents._Loader.compose_node, SafeConstructor.flatten_mapping

    def counted(self: Any, parent: Any, index: Any) -> Any:
        nonlocal composed
        composed += 1
        return compose(self, parent, index)

    def summed(self: Any, node: Any) -> None:
        nonlocal merged
        flatten(self, node)
        merged += len(node.value)

    monkeypatch.setattr(documents._Loader, "compose_node", counted)
    monkeypatch.setattr(SafeConstructor, "flatten_mapping", summed)
    taken = 0
    reasons = set()
    for text in generated(25, count):
        composed = merged = 0
        refused, value = _read(text)
        reasons.add(refused.partition(":")[0].partition(" at ")[0])
        taken += not refused
        values, depth = _size(value)
        assert "\n" not in refused
        assert values <= 80, text
        assert depth <= 12, text
        assert composed <= 82, text
        assert merged <= 2 * 80, text
    assert taken > count / 20
    assert {"nested too deeply", "too many values", "too large for YAML; write JSON"} <= reasons


def _read(text: str) -> tuple[str, Any]:
    """Why it is refused, or the value of the document. Any other error fails the test."""
    try:
        return "", read_document(text, "document")
    except InputError as refused:
        return refused.allowed, None


def _size(value: Any) -> tuple[int, int]:
    """Values with aliases followed, and lists and objects in each other. Raises for what JSON has not."""
    if isinstance(value, dict):
        parts = [_size(part) for part in value.values()]
        assert all(type(name) is str for name in value)
    elif isinstance(value, list):
        parts = [_size(part) for part in value]
    else:
        assert value is None or type(value) in (bool, int, float, str), type(value)
        return 1, 0
    return 1 + sum(count for count, _ in parts), max((depth for _, depth in parts), default=0) + 1
