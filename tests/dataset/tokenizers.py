"""Tokenizer folders for tests: bytes as ids, with EOS and a chat template."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from engine.train.text import byte_tokenizer

EOS = 256
CHAT = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MARKED = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<a>{% generation %}{{ m.content }}{{ eos_token }}"
    "{% endgeneration %}{% else %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}"
)


def byte_folder(folder: Path, template: str | None = None) -> str:
    """A tokenizer whose ids are bytes, and 256 for EOS."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer.from_str(byte_tokenizer())
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<eos>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return str(folder)


def as_ids(text: str) -> list[int]:
    """The ids of a document of that text."""
    return [*text.encode(), EOS]
