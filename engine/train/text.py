"""Text as tokens: bytes themselves, or the ids of a Hugging Face tokenizer file."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers


def byte_tokenizer() -> str:
    """tokenizer.json of a tokenizer whose ids are the bytes of the text in UTF-8."""
    vocabulary = {character: byte for byte, character in enumerate(_letters())}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return str(tokenizer.to_str(pretty=True))


def _letters() -> list[str]:
    """The character that stands for each byte in byte-level tokenizers: itself where it can be seen."""
    seen = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in seen else chr(next(others)) for byte in range(256)]
