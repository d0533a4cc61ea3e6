"""Models by name.

``gpt-a`` and ``gpt-b`` are the Atlas paper's (§3): L, H = 4K, 4K with 412 million parameters a layer, and
6K, 8K with 1.2 billion. A standard block of 12·H² has only 201 and 805 million, so their MLPs are widened
here until a layer has what the paper prints. (A block of 12·H² and one embedding table of about 50 thousand
tokens together give 407–411 million and 1.22 billion, which may be how the paper counted: with the output
matrix in it, a stage computes with all of them, as here.) They get one layer per pipeline stage ("we limit
the number of layers to fit"), and no vocabulary on top.

Llama 3: table 3 of "The Llama 3 Herd of Models" (2024), vocabulary 128,256, sequences of 8,192.
``gpt-22b`` to ``gpt-1t`` are those of Korthikanti et al. (2022, table 3), ``gpt-146b`` of Narayanan et al.
(2021, table 1): sequences of 2,048, vocabulary 51,200. ``tiny`` is for trials on a laptop: bytes as
vocabulary.
"""

from dataclasses import replace

from engine.errors import InputError
from engine.inputs import nearest
from engine.model.transformer import Transformer


def _gpt(layers: int, hidden: int, heads: int) -> Transformer:
    return Transformer(
        layers=layers, hidden=hidden, heads=heads, kv_heads=heads, ffn=4 * hidden, vocab=51_200, seq=2048
    )


PRESETS = {
    "gpt-a": Transformer(layers=1, hidden=4096, heads=32, kv_heads=32, ffn=42_112, vocab=0, seq=4096),
    "gpt-b": Transformer(layers=1, hidden=8192, heads=64, kv_heads=64, ffn=56_832, vocab=0, seq=6144),
    "llama-3-8b": Transformer(
        layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14_336, vocab=128_256, seq=8192, family="llama"
    ),
    "llama-3-70b": Transformer(
        layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28_672, vocab=128_256, seq=8192, family="llama"
    ),
    "llama-3-405b": Transformer(
        layers=126, hidden=16_384, heads=128, kv_heads=8, ffn=53_248, vocab=128_256, seq=8192, family="llama"
    ),
    "gpt-22b": _gpt(48, 6144, 64),
    "gpt-146b": _gpt(80, 12_288, 96),
    "gpt-175b": _gpt(96, 12_288, 96),
    "gpt-530b": _gpt(105, 20_480, 128),
    "gpt-1t": _gpt(128, 25_600, 160),
    "tiny": Transformer(layers=6, hidden=64, heads=4, kv_heads=4, ffn=256, vocab=256, seq=64),
}
# Sized to the pipeline that runs them: one layer a stage.
PER_STAGE = frozenset({"gpt-a", "gpt-b"})


def preset(name: str, *, stages: int = 1) -> Transformer:
    """The model called `name`, for a pipeline of `stages` stages.

    Raises
    ------
    InputError
        Unknown name; the message has the nearest known one.
    """
    if name not in PRESETS:
        raise InputError("model", name, "unknown model, " + nearest(name, PRESETS))
    shape = PRESETS[name]
    return replace(shape, layers=stages) if name in PER_STAGE else shape
