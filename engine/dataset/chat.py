"""Chats as text by a tokenizer's chat template, and which characters of it the assistant wrote.

Templates are Jinja, in jinja2's sandbox with what transformers' `apply_chat_template` gives them: tojson,
loop controls, raise_exception, strftime_now, the special tokens, and {% generation %} around the words of
the assistant.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import InputError

# Noncharacters of Unicode mark where a generation block begins and ends, while the text is made.
_BEGIN, _END = "\ufdd0", "\ufdd1"

Spans = list[tuple[int, int]]  # [start, end) in characters


class ChatError(ValueError):
    """A chat that its template does not take, or of which it cannot be said what the assistant wrote."""


class _Generation(Extension):
    """{% generation %} … {% endgeneration %}."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Any) -> str:
        return f"{_BEGIN}{caller()}{_END}"


class ChatTemplate:
    """A chat template with the special tokens of its tokenizer. Raises InputError: it is none."""

    def __init__(self, template: str, special_tokens: Mapping[str, Any]) -> None:
        room = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        room.filters["tojson"] = _to_json
        room.globals.update(raise_exception=_refuse, strftime_now=_strftime_now)
        try:
            self._template = room.from_string(template)
            tags = {token for _, kind, token in room.lex(template) if kind == "name"}
        except TemplateError as error:
            raise InputError(
                "tokenizer", template, f"its chat_template is not a valid template ({error})"
            ) from None
        self._marks, self._tokens = "generation" in tags, dict(special_tokens)

    def rendered(self, messages: list[dict[str, Any]]) -> tuple[str, Spans]:
        """The text of a chat, and the parts of it that the assistant wrote.

        Where the template marks no generation, an answer is what its message adds to the text of those
        before it with the prompt for an answer; the texts must begin alike.

        Raises
        ------
        ChatError
        """
        _check(messages)
        text, spans = _unmarked(self._text(messages))
        spans = spans if self._marks else self._added(messages, text)
        if not any(start < end for start, end in spans):
            raise ChatError("the template leaves out what the assistant says: nothing would be trained on")
        return text, spans

    def prompt(self, messages: list[dict[str, Any]]) -> str:
        """The text of a chat up to where the assistant goes on. Raises ChatError."""
        return _unmarked(self._text(messages, prompt=True))[0]

    def _added(self, messages: list[dict[str, Any]], text: str) -> Spans:
        spans = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._text(messages[:number], prompt=True)
            after = self._text(messages[: number + 1])
            if not (after.startswith(before) and text.startswith(after)):
                raise ChatError(
                    f"message {number + 1}: the template changes earlier text, so nobody can tell what the "
                    "assistant wrote; mark it with {% generation %} in the template"
                )
            spans.append((len(before), len(after)))
        return spans

    def _text(self, messages: list[dict[str, Any]], *, prompt: bool = False) -> str:
        given = {"messages": messages, "add_generation_prompt": prompt, "tools": None, "documents": None}
        try:
            return self._template.render(**self._tokens, **given)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError) as error:
            raise ChatError(f"the chat template refuses it ({str(error) or type(error).__name__})") from None


def chat_template_in(settings: Mapping[str, Any]) -> str | None:
    """The template that a tokenizer_config.json holds; of several by name the default one."""
    template = settings.get("chat_template")
    if isinstance(template, list):
        by_name = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = by_name.get("default")
    return template if isinstance(template, str) else None


def special_tokens_in(settings: Mapping[str, Any]) -> dict[str, str]:
    """The special tokens that a tokenizer_config.json names: {"eos_token": "</s>", …}."""
    tokens = {
        name: value.get("content") if isinstance(value, dict) else value
        for name, value in settings.items()
        if name.endswith("_token")
    }
    return {name: value for name, value in tokens.items() if isinstance(value, str)}


def _check(messages: Any) -> None:
    if not isinstance(messages, list) or not messages:
        raise ChatError("must be a list of messages {role, content}")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ChatError(f"message {number} must be an object with a role")
        if any(mark in str(message) for mark in (_BEGIN, _END, r"\ufdd0", r"\ufdd1")):
            raise ChatError(f"message {number} has U+FDD0 or U+FDD1, which are no characters")
    if not any(message["role"] == "assistant" for message in messages):
        raise ChatError("no message has role assistant: nothing of it would be trained on")


def _unmarked(text: str) -> tuple[str, Spans]:
    """The text without marks, and the spans between them. Blocks do not stand in each other."""
    plain, spans, start = "", [], 0
    for piece in text.split(_BEGIN):
        inside, end, outside = piece.partition(_END)
        if end:
            spans.append((start, start + len(inside)))
        plain += inside + outside
        start = len(plain)
    return plain, spans


def _to_json(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **how)


def _refuse(message: str) -> None:
    raise TemplateError(str(message)[:200])


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)
