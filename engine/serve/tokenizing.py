"""Text to ids and back for a served model: by the checkpoint's tokenizer.json, else byte by byte."""

import codecs
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from engine.dataset.chat import ChatError, ChatTemplate, chat_template_in, special_tokens_in
from engine.documents import read_json_file
from engine.errors import InputError
from engine.prefill.messages import Turn

TOKENIZER = "tokenizer.json"
SETTINGS = "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
BYTES = 256
_INCOMPLETE = "\ufffd"


class Pieces(Protocol):
    """The text of one answer, as its tokens come."""

    def add(self, token: int) -> str:
        """What text the token adds; empty while a character is not complete."""


class Tokenizer(Protocol):
    """`kind` says which of the two it is."""

    kind: str

    def encode(self, text: str) -> list[int]:
        """The ids of a prompt."""

    def chat(self, turns: Sequence[Turn]) -> list[int]:
        """The ids of a chat up to where the assistant goes on. Raises InputError: its template refuses it."""

    def pieces(self) -> Pieces:
        """For the text of an answer."""


def plain(turns: Sequence[Turn]) -> str:
    """A chat where the tokenizer has no template: a line of `role: content` each, then `assistant:`."""
    return "".join(f"{turn.role}: {turn.content}\n" for turn in turns) + "assistant:"


def tokenizer_of(folder: Path, *, vocab: int) -> Tokenizer:
    """The tokenizer of the checkpoint in `folder`. Raises InputError where what is there does not do."""
    if (folder / TOKENIZER).is_file():
        return _Hub(folder, vocab)
    if vocab < BYTES:
        allowed = (
            f"has no {TOKENIZER}, and its vocabulary of {vocab} ids is too small for bytes: at least 256"
        )
        raise InputError("prefill.checkpoint", str(folder), allowed)
    return _Bytes()


class _Bytes:
    kind = "bytes"

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", errors="replace"))

    def chat(self, turns: Sequence[Turn]) -> list[int]:
        return self.encode(plain(turns))

    def pieces(self) -> Pieces:
        return _BytePieces()


class _BytePieces:
    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token: int) -> str:
        return self._decoder.decode(bytes([token])) if token < BYTES else ""


class _Hub:
    kind = TOKENIZER

    def __init__(self, folder: Path, vocab: int) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        from tokenizers import Tokenizer as Library

        path = folder / TOKENIZER
        try:
            self._library = Library.from_str(path.read_text(encoding="utf-8"))
        except Exception as error:  # the library raises Exception itself
            raise InputError("prefill.checkpoint", str(path), f"is no tokenizer ({error})") from None
        if self._library.get_vocab_size() > vocab:
            allowed = f"has {self._library.get_vocab_size()} tokens, the model {vocab}"
            raise InputError("prefill.checkpoint", str(path), allowed)
        self._settings = _json(folder / SETTINGS)
        self._template = _template(folder, self._settings)

    def encode(self, text: str) -> list[int]:
        return list(self._library.encode(text).ids)

    def chat(self, turns: Sequence[Turn]) -> list[int]:
        if self._template is None:
            return self.encode(plain(turns))
        try:
            template = ChatTemplate(self._template, special_tokens_in(self._settings))
            text = template.prompt([turn.model_dump() for turn in turns])
        except (ChatError, InputError) as error:
            raise InputError("messages", len(turns), f"{error}"[:300]) from None
        return list(self._library.encode(text, add_special_tokens=False).ids)

    def pieces(self) -> Pieces:
        return _HubPieces(self._library)


class _HubPieces:
    def __init__(self, library: Any) -> None:
        self._library, self._ids, self._said = library, [], 0  # type: ignore[var-annotated]

    def add(self, token: int) -> str:
        self._ids.append(token)
        text = self._library.decode(self._ids, skip_special_tokens=True)
        if text.endswith(_INCOMPLETE):
            return ""
        piece = text[self._said :]
        self._said = len(text)
        return str(piece)


def _json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            document = read_json_file(file)
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _template(folder: Path, settings: dict[str, Any]) -> str | None:
    try:
        return (folder / TEMPLATE).read_text(encoding="utf-8")
    except OSError:
        pass
    return chat_template_in(settings)
