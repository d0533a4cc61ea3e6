"""`meridian data`: documents as tokens, once for many runs, and the sequences that a run sees of them."""

import json
import os
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click

from engine.commands.model_files import with_model
from engine.dataset.corpus import open_prepared
from engine.dataset.decoded import shown_step
from engine.dataset.document import DatasetDocument
from engine.dataset.prepare import prepare
from engine.dataset.tokenizer import decoder_of
from engine.documents import load_document
from engine.errors import InputError
from engine.inputs import parse
from engine.job.job import TrainJob
from engine.train.shown import shown_samples


@click.group("data")
def command() -> None:
    """Prepare documents for training, and look at what a run sees of them."""


@command.command("prepare")
@click.argument("file")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="A new folder.")
@click.option(
    "--processes", type=click.IntRange(1, 1024), help="How many processes tokenise (one for each CPU)."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines of text.")
def prepare_command(file: str, out: Path, processes: int | None, as_json: bool) -> None:
    """Tokenise documents once, into a folder that runs map into memory.

    FILE (JSON or YAML, - for standard input) has: sources (each: path, format text|jsonl|parquet|datasets,
    field or messages, weight), tokenizer, packing, on_bad, longest_bytes; see docs/data.md. The folder
    appears once it is whole. After an interruption, run the same command again to go on. Progress goes to
    stderr.
    """
    document = parse(DatasetDocument, load_document(file))
    with click.progressbar(length=1, label="tokenise", file=sys.stderr, hidden=as_json) as bar:

        def begin(total: int) -> None:
            bar.length = max(1, total)

        index = prepare(
            document,
            out,
            processes=processes or os.cpu_count() or 1,
            begin=begin,
            report=lambda done: bar.update(done),
        )
    skipped = sum(shard.skipped for shard in index.shards)
    for example in [example for shard in index.shards for example in shard.examples][:20]:
        click.echo(f"skipped: {example.where}: {example.why}", err=True)
    answer: dict[str, Any] = {
        "out": str(out),
        "fingerprint": index.fingerprint,
        "vocabulary": index.tokenizer.vocabulary,
        "sources": [
            {
                "path": source.path,
                **{
                    name: sum(getattr(shard, name) for shard in index.shards if shard.source == number)
                    for name in ("documents", "tokens", "counted", "skipped")
                },
            }
            for number, source in enumerate(index.document.sources)
        ],
    }
    if as_json:
        click.echo(json.dumps(answer))
        return
    for row in answer["sources"]:
        click.echo(
            f"{row['path']}: {row['documents']:,} documents, {row['tokens']:,} tokens, "
            f"{row['counted']:,} of them count"
        )
    click.echo(f"{out}: vocabulary {index.tokenizer.vocabulary:,}, {skipped:,} skipped")


@command.command("inspect")
@click.argument("target")
@click.option("--step", default=0, type=click.IntRange(0), show_default=True, help="The step, from 0.")
@click.option("--seq", type=click.IntRange(1), help="Tokens of a sequence, where TARGET is a folder.")
@click.option("--batch", default=8, type=click.IntRange(1), show_default=True, help="Sequences of a step.")
@click.option("--seed", default=0, type=click.IntRange(0), show_default=True)
@click.option(
    "--samples",
    default=8,
    type=click.IntRange(1),
    show_default=True,
    help="The largest number of sequences to show.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each sequence.")
def inspect_command(
    target: str, step: int, seq: int | None, batch: int, seed: int, samples: int, as_json: bool
) -> None:
    """Show the sequences of a step, decoded.

    TARGET is the document of `meridian train` (then data, seq, batch and seed are the job's), or a prepared
    folder, or NAME.idx of Megatron. In the text that is printed, ⟪…⟫ is not counted by the loss, and a line
    begins with each document.
    """
    for sequence in islice(_shown(target, step, seq, batch, seed), samples):
        click.echo(json.dumps(sequence) if as_json else "\n".join(_lines(sequence)))


def _shown(target: str, step: int, seq: int | None, batch: int, seed: int) -> Iterator[dict[str, Any]]:
    if Path(target).is_file() and Path(target).suffix not in (".idx", ".bin"):
        job = parse(TrainJob, with_model(load_document(target), "model", "config"))
        return shown_samples(job, step)
    if seq is None:
        raise InputError("--seq", None, "required where TARGET is a folder")
    corpus = open_prepared(target, seq=seq, seed=seed, vocabulary=None, field="TARGET")
    file = corpus.tokenizer_file
    return shown_step(corpus, step, batch, decoder_of(file, field="TARGET") if file else None)


def _lines(sequence: dict[str, Any]) -> list[str]:
    parts = sequence["parts"]
    counted = sum(part["tokens"] for part in parts if part["counts"])
    total = sum(part["tokens"] for part in parts)
    where = f"sequence {sequence['sequence']:,}" if "sequence" in sequence else f"from {sequence['start']:,}"
    head = f"sample {sequence['sample']}: {sequence['source']}, {where}"
    lines = [f"{head}: {counted:,} of {total:,} tokens count"]
    before: int | None = -1
    for part in parts:
        text = part["text"] if part["text"] is not None else " ".join(map(str, part["ids"]))
        if not part["counts"]:
            text = f"⟪{text}⟫"
        if part["document"] != before:
            lines.append(f"  {_name(sequence, part)}: {text}")
        else:
            lines[-1] += text
        before = part["document"]
    return [line.replace("\n", "\\n") for line in lines]


def _name(sequence: dict[str, Any], part: dict[str, Any]) -> str:
    """What a run of tokens is of: a document, what fills a sequence up, or text as it stands in its file."""
    if part["document"] is not None:
        return f"document {part['document']:,}"
    return "filled up" if "sequence" in sequence else "text"
