"""Text files as the ids of a Hugging Face tokenizer, kept on disk so that every file is encoded once."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import xxhash
from numpy.typing import NDArray

from engine.errors import InputError, reason_of

PIECE_CHARACTERS = 1_000_000  # text is encoded in pieces that end with a line
TOKEN = np.dtype("<u4")


class Encoder:
    """The tokenizer of `path`, with a vocabulary of at most `vocab` ids.

    Raises
    ------
    InputError
        The file is no tokenizer, or has more tokens than the model.
    """

    def __init__(self, path: str, *, vocab: int) -> None:
        # Its threads would not survive the fork of the ranks.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        from tokenizers import Tokenizer

        try:
            text = Path(path).expanduser().read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError("model.tokenizer", path, f"cannot be read ({reason_of(error)})") from None
        try:
            self._tokenizer = Tokenizer.from_str(text)
        except Exception as error:  # the library raises Exception itself
            raise InputError("model.tokenizer", path, f"is not a tokenizer.json ({error})") from None
        self._digest = xxhash.xxh3_128_hexdigest(text.encode())
        size = self._tokenizer.get_vocab_size()
        if size > vocab:
            raise InputError("model.vocab", vocab, f"at least {size}: the tokens of {path}")

    def tokens(self, path: Path) -> NDArray[np.uint32]:
        """The ids of a file's text, mapped. Raises InputError where it is not UTF-8, OSError."""
        cached = self._cache(path)
        if not cached.exists():
            self._encode(path, cached)
        if cached.stat().st_size == 0:
            return np.empty(0, dtype=TOKEN)
        return np.memmap(cached, dtype=TOKEN, mode="r")

    def _cache(self, path: Path) -> Path:
        """Where the ids of a file are kept: a name for its path, size and time, and for the tokenizer."""
        stat = path.stat()
        key = f"{self._digest}/{path.resolve()}/{stat.st_size}/{stat.st_mtime_ns}"
        return cache_folder() / f"{xxhash.xxh3_128_hexdigest(key.encode())}.u32"

    def _encode(self, path: Path, into: Path) -> None:
        into.parent.mkdir(parents=True, exist_ok=True)
        fd, partial = tempfile.mkstemp(dir=into.parent)
        try:
            with open(fd, "wb") as out:
                for piece in _pieces(path):
                    ids = self._tokenizer.encode(piece, add_special_tokens=False).ids
                    out.write(np.asarray(ids, dtype=TOKEN).tobytes())
            os.replace(partial, into)
        except UnicodeDecodeError as error:
            raise InputError("data.files", str(path), f"is not UTF-8 text ({error})") from None
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)


def cache_folder() -> Path:
    """Where encoded text is kept: $XDG_CACHE_HOME/meridian/tokens, by default under ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(root).expanduser() / "meridian" / "tokens"


def _pieces(path: Path) -> Iterator[str]:
    with path.open(encoding="utf-8", newline="") as file:
        while lines := file.readlines(PIECE_CHARACTERS):
            yield "".join(lines)
