"""`meridian data prepare` against bare `tokenizers`, and its memory as the data grows.

Speed: `Tokenizer.encode_batch` in as many processes, on the same texts in memory, in turns with `prepare`
from JSONL to a whole folder, which starts its processes too. Memory: the largest resident set of any
process of a run, at several sizes. The tokenizer is a BPE of 8,000 tokens that is trained first.

Run: python -m benchmarks.data [PROCESSES] [MB …]
"""

import json
import multiprocessing
import os
import random
import resource
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.dataset import prepare as preparing
from engine.dataset.document import DatasetDocument
from engine.inputs import parse
from engine.train.corpus import corpus_files

TURNS = 3
SPEED_MB = 32
SIZES_MB = (200, 400, 800)
DOCUMENT_CHARACTERS = 4000
BATCH = 64


def texts() -> list[str]:
    """Documents of about 4,000 characters: the standard library's source."""
    whole = "".join(path.read_text(encoding="utf-8") for path in corpus_files(None))
    return [whole[i : i + DOCUMENT_CHARACTERS] for i in range(0, len(whole), DOCUMENT_CHARACTERS)]


def write_tokenizer(folder: Path, documents: list[str]) -> None:
    """A BPE of bytes with 8,000 tokens."""
    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=8000, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(documents[::8], trainer)
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"eos_token": "<eos>"}')


def write_jsonl(path: Path, documents: list[str], megabytes: int) -> None:
    """The documents in another order again and again."""
    draw = random.Random(1)
    with path.open("w", encoding="utf-8") as file:
        while file.tell() < megabytes * 1_000_000:
            file.write(json.dumps({"text": draw.choice(documents)}, ensure_ascii=False) + "\n")


def bare(work: tuple[str, str, int, int]) -> float:
    """Seconds in which `encode_batch` takes every n-th document of a file, without any reading."""
    path, tokenizer, first, every = work
    library = Tokenizer.from_file(f"{tokenizer}/tokenizer.json")
    with open(path, encoding="utf-8") as file:
        own = [json.loads(line)["text"] for i, line in enumerate(file) if i % every == first]
    start = time.perf_counter()
    for i in range(0, len(own), BATCH):
        library.encode_batch(own[i : i + BATCH], add_special_tokens=False)
    return time.perf_counter() - start


def bare_seconds(path: Path, tokenizer: Path, processes: int) -> float:
    """The slowest of the processes."""
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(processes, context) as pool:
        work = [(str(path), str(tokenizer), n, processes) for n in range(processes)]
        return max(pool.map(bare, work))


def document_of(path: Path, tokenizer: Path) -> DatasetDocument:
    """The document that prepares one file."""
    source = {"path": str(path), "format": "jsonl"}
    return parse(DatasetDocument, {"sources": [source], "tokenizer": str(tokenizer)})


def prepare_seconds(path: Path, tokenizer: Path, processes: int) -> float:
    """From the document to the whole folder."""
    out = path.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    start = time.perf_counter()
    preparing.prepare(document_of(path, tokenizer), out, processes=processes)
    return time.perf_counter() - start


def memory_mb(path: Path, tokenizer: Path, processes: int) -> float:
    """The largest resident set of a child, or of this process, in a process of its own."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, context) as pool:
        return pool.submit(_memory, path, tokenizer, processes).result()


def _memory(path: Path, tokenizer: Path, processes: int) -> float:
    out = path.parent / "out"
    shutil.rmtree(out, ignore_errors=True)
    preparing.prepare(document_of(path, tokenizer), out, processes=processes)
    from multiprocessing import forkserver

    forkserver._forkserver._stop()  # type: ignore[attr-defined]  # its children count once it has ended
    used = [resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return max(used) / 1024


def main() -> None:
    """Print both tables."""
    processes = int(sys.argv[1]) if len(sys.argv) > 1 else len(os.sched_getaffinity(0))
    sizes = [int(argument) for argument in sys.argv[2:]] or SIZES_MB
    documents = texts()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tokenizer, path = folder / "tokenizer", folder / "a.jsonl"
        write_tokenizer(tokenizer, documents)
        write_jsonl(path, documents, SPEED_MB)
        size = path.stat().st_size / 1e6
        ratios = []
        for _ in range(TURNS):
            alone, whole = (f(path, tokenizer, processes) for f in (bare_seconds, prepare_seconds))
            ratios.append(alone / whole)
            print(f"{size:.0f} MB, {processes} processes: encode_batch {alone:.2f} s, prepare {whole:.2f} s")
        print(f"speed of bare encode_batch: {statistics.median(ratios):.0%} (median of {TURNS})")
        for megabytes in sizes:
            write_jsonl(path, documents, megabytes)
            print(f"{megabytes:,} MB: {memory_mb(path, tokenizer, processes):.0f} MB resident at most")


if __name__ == "__main__":
    main()
