"""Bytes of text behind tokens, and losses in bits per byte, against the text itself."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from engine.dataset.token_bytes import token_bytes, tokens_per_byte
from engine.job.job import TrainJob
from engine.train.corpus import corpus_of
from engine.train.text import byte_tokenizer
from tests.runtime.jobs import Run, job
from tests.runtime.test_training_equals_single import reference

TEXT = "the quick brown fox, naïve café — 東京 \n" * 20


def byte_level() -> Tokenizer:
    """A BPE of bytes with merges and a special token, as of GPT-2, Llama 3 and Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        [TEXT],
        trainers.BpeTrainer(
            vocab_size=330, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
        ),
    )
    tokenizer.add_tokens([AddedToken("über", normalized=False)])
    return tokenizer


def after_sentencepiece() -> Tokenizer:
    """A BPE that falls back to bytes, as of Mistral and Gemma."""
    fallback = {f"<0x{byte:02X}>": byte for byte in range(256)}
    vocabulary = {**fallback, **{c: 256 + i for i, c in enumerate(sorted(set("▁abcdefé東")))}}
    pairs = [("a", "b"), ("▁", "a")]
    vocabulary |= {a + b: len(vocabulary) + i for i, (a, b) in enumerate(pairs)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return tokenizer


KINDS = {"byte-level": byte_level(), "sentencepiece": after_sentencepiece()}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=80, deadline=None, derandomize=True)
@given(text=st.text(st.characters(codec="utf-8", exclude_characters="▁")) | st.text("ab é東ü"))
def test_the_bytes_of_a_texts_tokens_are_the_bytes_of_the_text(kind: str, text: str) -> None:
    tokenizer = KINDS[kind]
    lengths = token_bytes(tokenizer.to_str())
    assert lengths is not None
    assert lengths[tokenizer.encode(text).ids].sum() == len(text.encode())


def test_special_tokens_are_no_text_and_others_that_were_added_are() -> None:
    lengths = token_bytes(KINDS["byte-level"].to_str())
    assert lengths is not None
    number = KINDS["byte-level"].token_to_id
    assert lengths[number("<eos>")] == 0
    assert lengths[number("über")] == 5


def test_unigram_and_plain_bytes() -> None:
    unigram = Tokenizer(models.Unigram([("<unk>", 0.0), ("▁é", -1.0), ("ab", -2.0)], unk_id=0))
    unigram.decoder = decoders.Metaspace()
    assert token_bytes(unigram.to_str()).tolist() == [5, 3, 2]  # type: ignore[union-attr]
    assert token_bytes(byte_tokenizer()).tolist() == [1] * 256  # type: ignore[union-attr]


def test_tokens_that_do_not_say_their_text_are_not_counted() -> None:
    pieces = Tokenizer(models.WordPiece({"[UNK]": 0, "a": 1, "##b": 2}, unk_token="[UNK]"))
    pieces.decoder = decoders.WordPiece()
    assert token_bytes(pieces.to_str()) is None


def test_what_the_loss_does_not_count_has_no_bytes() -> None:
    lengths = np.array([1, 3, 0])
    assert tokens_per_byte(lengths, np.array([[0, 1], [-100, 1]])) == 3 / 7
    assert tokens_per_byte(lengths, np.array([2, 2])) is None
    assert tokens_per_byte(lengths, np.array([0, 9])) == 2.0  # beyond the tokenizer: no text


def tokenised(folder: Path, **changes: Any) -> TrainJob:
    KINDS["byte-level"].save(str(folder / "tokenizer.json"))
    (folder / "text").mkdir()
    (folder / "text" / "a.txt").write_text(TEXT)
    return job(
        model={
            "layers": 3,
            "hidden": 32,
            "heads": 2,
            "seq": 16,
            "vocab": 512,
            "tokenizer": str(folder / "tokenizer.json"),
        },
        data=str(folder / "text"),
        **changes,
    )


def decoded_bits(of: TrainJob, corpus: Any, step: int, batch: int, loss: float) -> float:
    """Of a loss in nats a token: all bits of the batch, by the bytes of its decoded targets."""
    _, targets = corpus.batch(step, batch, np.arange(batch))
    vocabulary = json.loads(Path(str(of.model.tokenizer)).read_text())
    text = {n: t for t, n in vocabulary["model"]["vocab"].items()}
    text |= {
        t["id"]: "" if t["special"] else "?" * len(t["content"].encode()) for t in vocabulary["added_tokens"]
    }
    size = sum(len(text[int(number)]) for number in targets.flat)
    return loss * targets.size / math.log(2) / size


def test_a_run_says_its_losses_in_bits_per_byte(tmp_path: Path) -> None:
    """Of training and validation, in the result and in the events, for replicas of a pipeline."""
    of = tokenised(tmp_path, steps=3, validation={"every": 2, "share": 0.3, "sequences": 5})
    corpus, batch = corpus_of(of), of.cell.global_batch
    run = Run(of, str(tmp_path / "log"))
    result = run.result()
    expected = [decoded_bits(of, corpus, step, batch, loss) for step, loss in enumerate(result["losses"])]
    assert result["bits_per_byte"] == pytest.approx(expected, rel=1e-12)
    assert [event["bits_per_byte"] for event in run.of_kind("step")] == result["bits_per_byte"]
    held_out = [decoded_bits(of, corpus.held_out, 0, 5, row["loss"]) for row in result["validation"]]
    assert len(held_out) == 2
    assert [row["bits_per_byte"] for row in result["validation"]] == pytest.approx(held_out, rel=1e-12)
    assert [e["bits_per_byte"] for e in run.of_kind("validation")] == [
        row["bits_per_byte"] for row in result["validation"]
    ]


def test_bytes_as_tokens_have_a_loss_in_bits_and_no_more() -> None:
    of = job(steps=1)
    assert corpus_of(of).tokens_per_byte(0, of.cell.global_batch) == 1.0
    losses, _, _ = reference(of)
    assert losses[0] / math.log(2) == pytest.approx(8.0, abs=0.3)  # of 256 bytes, before training
