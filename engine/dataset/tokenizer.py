"""A Hugging Face tokenizer folder: text and chats as ids that end with EOS."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from engine.dataset.chat import ChatTemplate, chat_template_in, special_tokens_in
from engine.documents import read_json
from engine.errors import InputError, reason_of

FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ids:
    """A document as ids with EOS at its end; `counts` says which of them a loss counts (None: all)."""

    tokens: NDArray[Any]
    counts: NDArray[np.bool_] | None = None


class TextTokenizer:
    """The tokenizer in a folder.

    Attributes
    ----------
    vocabulary : one more than the largest id.  eos : the id that ends a document.
    dtype : of ids on disk.  digest : changes with any of its files.

    Raises
    ------
    InputError
        With field `tokenizer`: the folder holds none, or none with an EOS.
    """

    def __init__(self, folder: str | Path) -> None:
        os.environ["TOKENIZERS_PARALLELISM"] = "false"  # each process is busy with its own text
        from tokenizers import Tokenizer

        self.folder = Path(folder).expanduser()
        if self.folder.name == FILES[0]:
            self.folder = self.folder.parent
        text = self._read(FILES[0])
        try:
            self.library = Tokenizer.from_str(text)
            settings = read_json(self._read(FILES[1]))
        except InputError:
            raise
        except Exception as error:  # the library raises Exception itself
            raise InputError("tokenizer", str(folder), f"cannot be read ({error})") from None
        self.library.no_truncation()
        self.library.no_padding()
        self._settings = settings if isinstance(settings, dict) else {}
        self.vocabulary = max(self.library.get_vocab().values()) + 1
        eos = special_tokens_in(self._settings).get("eos_token", "")
        number = self.library.token_to_id(eos)
        if number is None:
            allowed = (
                "tokenizer_config.json must name an eos_token that tokenizer.json has: documents end with it"
            )
            raise InputError("tokenizer", eos or str(folder), allowed)
        self.eos: int = number
        self.dtype = np.dtype("<u2" if self.vocabulary <= 1 << 16 else "<u4")
        texts = [path.read_bytes() for name in FILES if (path := self.folder / name).is_file()]
        self.digest = xxhash.xxh3_128_hexdigest(b"\0".join(texts))

    def of_texts(self, texts: Sequence[str], *, ends: bool = True) -> list[Ids]:
        """Texts as ids; with `ends` each ends with EOS."""
        encodings = self.library.encode_batch_fast(texts, add_special_tokens=False)
        tail = [self.eos] if ends else []
        return [Ids(tokens=np.array(encoding.ids + tail, dtype=self.dtype)) for encoding in encodings]

    def of_chats(self, chats: Sequence[tuple[str, list[tuple[int, int]]]]) -> list[Ids]:
        """Rendered chats as ids. A token counts where a character of it lies in a span.

        transformers leaves out all but the first token of a span's last character, where that has several.
        EOS is added where the text does not end with it, and counts if the token before it does.
        """
        encodings = self.library.encode_batch([text for text, _ in chats], add_special_tokens=False)
        return [self._of_chat(encoding, spans) for encoding, (_, spans) in zip(encodings, chats, strict=True)]

    def _of_chat(self, encoding: Any, spans: list[tuple[int, int]]) -> Ids:
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        counts = np.zeros(len(offsets), dtype=bool)
        for start, end in spans:
            counts |= (offsets[:, 0] < end) & (offsets[:, 1] > start)
        tokens = np.array(encoding.ids, dtype=self.dtype)
        if not tokens.size or tokens[-1] != self.eos:
            tokens = np.append(tokens, self.dtype.type(self.eos))
            counts = np.append(counts, counts[-1:] if counts.size else False)
        return Ids(tokens=tokens, counts=counts)

    def chat_template(self) -> ChatTemplate:
        """The chat template. Raises InputError where the tokenizer has none."""
        path = self.folder / FILES[2]
        template = self._read(FILES[2]) if path.is_file() else chat_template_in(self._settings)
        if template is None:
            allowed = (
                "has no chat_template: messages need one in tokenizer_config.json or chat_template.jinja"
            )
            raise InputError("tokenizer", str(self.folder), allowed)
        return ChatTemplate(template, special_tokens_in(self._settings))

    def copy_to(self, folder: Path) -> None:
        """Write the tokenizer's files into a folder."""
        for name in FILES:
            if (self.folder / name).is_file():
                (folder / name).write_bytes((self.folder / name).read_bytes())

    def _read(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            allowed = f"a folder with {FILES[0]} and {FILES[1]}; {name} cannot be read ({reason_of(error)})"
            raise InputError("tokenizer", str(self.folder), allowed) from None


Decoder = Callable[[Sequence[int]], str]


def decoder_of(path: str | Path, *, field: str) -> Decoder:
    """The function from ids to text, with special tokens, of a tokenizer.json.

    Raises
    ------
    InputError
        With `field`: the file cannot be read, or is none.
    """
    from tokenizers import Tokenizer

    try:
        library = Tokenizer.from_file(str(Path(path).expanduser()))
    except Exception as error:  # the library raises Exception itself
        raise InputError(field, str(path), f"is not a tokenizer.json ({error})") from None
    return lambda ids: str(library.decode(list(ids), skip_special_tokens=False))
