"""Reads a Dockerfile as far as ours go: stages and their instructions; no heredocs, no ONBUILD."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

KNOWN = frozenset(
    {"ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "RUN", "USER", "VOLUME"}
    | {"WORKDIR"}
)
_FLAG = re.compile(r"--([a-z-]+)=(\S+)\s+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One instruction: its keyword, its --flags, the rest as written, and the line it starts on."""

    word: str
    flags: dict[str, str]
    text: str
    line: int

    @property
    def argv(self) -> list[str] | None:
        """The list where the instruction is in the exec form, else None: it is a line for /bin/sh."""
        if not self.text.startswith("["):
            return None
        words = json.loads(self.text)
        if not isinstance(words, list) or not all(isinstance(part, str) for part in words):
            raise ValueError(f"line {self.line}: the exec form must be a list of strings")
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One FROM and what follows it."""

    name: str
    base: str
    instructions: tuple[Instruction, ...]


def parse(path: Path) -> tuple[dict[str, str], list[Stage]]:
    """The global ARGs with their defaults, and the stages in order.

    Raises
    ------
    ValueError
        An instruction that this parser does not know, or a stage without a name where two are.
    """
    arguments: dict[str, str] = {}
    stages: list[tuple[str, str, list[Instruction]]] = []
    for one in _instructions(path.read_text(encoding="utf-8")):
        if one.word == "FROM":
            base, _, name = one.text.partition(" AS ")
            stages.append((name.strip() or str(len(stages)), substitute(base.strip(), arguments), []))
        elif not stages:
            name, _, default = one.text.partition("=")
            arguments[name] = default
        else:
            stages[-1][2].append(one)
    return arguments, [Stage(name=n, base=b, instructions=tuple(i)) for n, b, i in stages]


def substitute(text: str, values: dict[str, str]) -> str:
    """`text` with ${NAME} and $NAME replaced, as Docker does in every instruction but RUN and CMD."""
    return re.sub(r"\$\{(\w+)\}|\$(\w+)", lambda m: values.get(m[1] or m[2], ""), text)


def _instructions(text: str) -> list[Instruction]:
    instructions, rest, start = [], "", 0
    for number, line in enumerate(text.splitlines(), 1):
        if not rest and (not line.strip() or line.lstrip().startswith("#")):
            continue
        if line.lstrip().startswith("#"):
            continue  # a comment between continued lines
        start = start if rest else number
        if line.endswith("\\"):
            rest += line[:-1].strip() + " "
            continue
        instructions.append(_one(rest + line.strip(), start))
        rest = ""
    if rest:
        raise ValueError(f"line {start}: the file ends inside an instruction")
    return instructions


def _one(text: str, line: int) -> Instruction:
    word, _, rest = text.partition(" ")
    if word not in KNOWN:
        raise ValueError(f"line {line}: {word}: known are {', '.join(sorted(KNOWN))}")
    flags, rest = {}, rest.strip()
    while word in ("COPY", "HEALTHCHECK", "FROM", "RUN") and (match := _FLAG.match(rest)):
        flags[match[1]], rest = match[2], rest[match.end() :]
    return Instruction(word=word, flags=flags, text=rest, line=line)
