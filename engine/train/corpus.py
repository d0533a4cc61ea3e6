"""The text that a job trains on, as bytes or tokens, and the order in which sequences are drawn from it.

The sequences of a step depend on the seed, the step and the global batch only, never on how the batch is
split over pipelines and microbatches.
"""

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from engine.dataset.corpus import PreparedCorpus, open_prepared
from engine.dataset.digest import add_samples
from engine.dataset.token_bytes import token_bytes, tokens_per_byte
from engine.errors import InputError
from engine.job.job import TrainJob
from engine.train.tokens import Encoder

MOST_FILES = 20_000


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TextCorpus:
    """Files on disk (mapped, not read) and the number of sequences' starts that each holds.

    names : of the files, by which a person knows them.
    token_bytes : bytes of text behind each id; None where that is not known.
    """

    files: tuple[NDArray[Any], ...]
    names: tuple[str, ...]
    ends: NDArray[np.int64]  # running sum of starts, shape (files,)
    seq: int
    seed: int
    held_out: "TextCorpus | None" = None
    token_bytes: NDArray[np.int64] | None = None

    @classmethod
    def of(
        cls,
        files: Sequence[NDArray[Any]],
        *,
        seq: int,
        seed: int,
        names: Sequence[str] = (),
        token_bytes: NDArray[np.int64] | None = None,
    ) -> "TextCorpus":
        """The sequences of the files that hold at least one. Raises InputError where none does."""
        numbers = [number for number, file in enumerate(files) if file.size > seq]
        long_enough = [files[number] for number in numbers]
        if not long_enough:
            size = max((file.size for file in files), default=0)
            allowed = f"needs a file of at least {seq + 1} (seq + 1) bytes or tokens; the longest has {size}"
            raise InputError("data.files", None, allowed)
        ends = np.cumsum([file.size - seq for file in long_enough], dtype=np.int64)
        return cls(
            files=tuple(long_enough),
            names=tuple(names[number] if names else str(number) for number in numbers),
            ends=ends,
            seq=seq,
            seed=seed,
            token_bytes=token_bytes,
        )

    def batch(self, step: int, global_batch: int, samples: NDArray[np.int64]) -> tuple[NDArray, NDArray]:
        """Return tokens and targets of some samples of a step.

        Parameters
        ----------
        step : counted from 0.
        samples : indexes into the global batch.

        Returns
        -------
        tokens, targets : int64, shape (len(samples), seq); targets are the next bytes or tokens.
        """
        windows = [self.window(*position) for position in self.drawn(step, global_batch, samples)]
        stacked = np.stack(windows).astype(np.int64)
        return stacked[:, :-1], stacked[:, 1:]

    def drawn(self, step: int, global_batch: int, samples: NDArray[np.int64]) -> list[tuple[int, int]]:
        """File and first byte or token there of some samples of a step (see `batch`)."""
        generator = np.random.Generator(np.random.Philox(key=(self.seed, step)))
        starts = generator.integers(0, int(self.ends[-1]), size=global_batch)[samples]
        files = np.searchsorted(self.ends, starts, side="right")
        before = np.concatenate([[0], self.ends])[files]
        return list(zip(files.tolist(), (starts - before).tolist(), strict=True))

    def window(self, file: int, start: int) -> NDArray[Any]:
        """The seq + 1 bytes or tokens of a file that begin at `start`."""
        return self.files[file][start : start + self.seq + 1]

    @property
    def tokenizer_file(self) -> None:
        """The model's document names it."""

    def counted(self, step: int, global_batch: int) -> None:
        """All targets count."""

    def tokens_per_byte(self, step: int, global_batch: int) -> float | None:
        """Targets of a step's global batch, by the bytes of their text; None where that is not known."""
        if self.files[0].dtype == np.uint8:
            return 1.0
        if self.token_bytes is None:
            return None
        _, targets = self.batch(step, global_batch, np.arange(global_batch))
        return tokens_per_byte(self.token_bytes, targets)

    def fingerprint(self) -> str:
        """Hex digest of every file's length and bytes (of samples, where a file is large)."""
        digest = xxhash.xxh3_128()
        for file in self.files:
            add_samples(digest, file)
        return digest.hexdigest()


Corpus = TextCorpus | PreparedCorpus


def samples_of(pipeline: int, microbatch: int, microbatches: int, micro_batch: int) -> NDArray[np.int64]:
    """Indexes into the global batch of one microbatch: pipelines outermost, as n·M on one GPU."""
    first = (pipeline * microbatches + microbatch) * micro_batch
    return np.arange(first, first + micro_batch)


def corpus_of(job: TrainJob, dc: str | None = None) -> Corpus:
    """The corpus of a job, with what it validates on.

    Parameters
    ----------
    dc : name of the data centre whose files are read, where the job names files for each; by default any.

    Raises
    ------
    InputError
        The files are missing, unreadable, or hold too little text; or the tokenizer does not fit.
    """
    data = job.data.path
    if isinstance(data, dict):
        data = data[dc] if dc is not None else next(iter(data.values()))
    model = job.model
    if job.data.prepared is not None:
        assert data is not None
        return _prepared(job, data)
    share = job.data.validation.share if job.data.validation else 0.0
    return open_corpus(
        data,
        seq=model.seq,
        seed=job.optimizer.seed,
        tokenizer=model.tokenizer,
        vocab=model.vocabulary,
        share=share,
    )


def _prepared(job: TrainJob, path: str) -> PreparedCorpus:
    model, validation = job.model, job.data.validation
    given = {"seq": model.seq, "seed": job.optimizer.seed, "vocabulary": model.vocabulary}
    corpus = open_prepared(path, **given, field="data.prepared")
    if corpus.tokenizer is not None and model.tokenizer is not None:
        raise InputError("model.tokenizer", model.tokenizer, "must be left out: data.prepared has its own")
    if corpus.tokenizer is None and model.tokenizer is None:
        allowed = "required with a dataset of Megatron: checkpoints and exported models hold it"
        raise InputError("model.tokenizer", None, allowed)
    corpus = replace(corpus, token_bytes=_bytes_of(corpus.tokenizer_file or model.tokenizer))
    if validation is None or validation.prepared is None:
        return corpus
    held_out = open_prepared(validation.prepared, **given, field="data.validation.prepared")
    lengths = _bytes_of(held_out.tokenizer_file) if held_out.tokenizer_file else corpus.token_bytes
    return replace(corpus, held_out=replace(held_out, token_bytes=lengths))


def _bytes_of(tokenizer: str | Path | None) -> NDArray[np.int64] | None:
    assert tokenizer is not None  # the data has one, or the model
    try:
        return token_bytes(Path(tokenizer).expanduser().read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError) as error:
        raise InputError("model.tokenizer", str(tokenizer), f"is not a tokenizer.json ({error})") from None


def open_corpus(
    data: str | None,
    *,
    seq: int,
    seed: int,
    tokenizer: str | None = None,
    vocab: int = 256,
    share: float = 0.0,
) -> TextCorpus:
    """Return the text of a file or folder, or by default of the Python standard library's own modules.

    Parameters
    ----------
    tokenizer : a Hugging Face tokenizer file of at most `vocab` tokens; None: the bytes themselves.
    share : of every file, at its end, that is held out (`Corpus.held_out`).

    Raises
    ------
    InputError
        `data` is missing, unreadable, or holds too little text for one sequence.
    """
    encoder = Encoder(tokenizer, vocab=vocab) if tokenizer else None
    paths = corpus_files(data)
    files, names = [_mapped(path, encoder) for path in paths], [str(path) for path in paths]
    lengths = _bytes_of(tokenizer) if tokenizer else None

    def sequences_of(parts: Sequence[NDArray[Any]]) -> TextCorpus:
        return TextCorpus.of(parts, seq=seq, seed=seed, names=names, token_bytes=lengths)

    try:
        if not share:
            return sequences_of(files)
        cuts = [round(file.size * (1.0 - share)) for file in files]
        trained = sequences_of([file[:cut] for file, cut in zip(files, cuts, strict=True)])
        held_out = sequences_of([file[cut:] for file, cut in zip(files, cuts, strict=True)])
    except InputError as error:
        part = f" in the parts of {1 - share:.0%} and {share:.0%}" if share else ""
        raise InputError("data.files", data, error.allowed + part) from None
    return replace(trained, held_out=held_out)


def corpus_files(data: str | None) -> list[Path]:
    """The files of a corpus in the order in which they are read."""
    if data is None:
        # Text that comes with every Python; sorted, so that it is the same on every node of one version.
        return sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    try:
        root = Path(data).expanduser()
        exists = root.exists()
    except (OSError, RuntimeError, ValueError):  # too long, a user that is none, NUL
        exists = False
    if not exists:
        raise InputError("data.files", data[:200], "no such file or folder")
    if root.is_file():
        return [root]
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.name.startswith("."))
    if not files:
        raise InputError("data.files", data, "the folder holds no files")
    if len(files) > MOST_FILES:
        raise InputError(
            "data.files", data, f"holds {len(files):,} files; at most {MOST_FILES:,}: join them into fewer"
        )
    return files


def _mapped(path: Path, encoder: Encoder | None) -> NDArray[Any]:
    try:
        if encoder is not None:
            return encoder.tokens(path)
        if path.stat().st_size == 0:
            return np.empty(0, dtype=np.uint8)
        return np.memmap(path, dtype=np.uint8, mode="r")
    except OSError as error:
        raise InputError("data.files", str(path), f"cannot be read ({error.strerror})") from None
