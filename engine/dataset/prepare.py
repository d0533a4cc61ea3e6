"""Tokenises the sources of a document once, in several processes, into a folder of memory-mapped shards.

The folder appears when it is whole. Until then its shards lie in `.NAME.partial` beside it, from where the
same command goes on after an interruption.
"""

import contextlib
import fcntl
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

from engine.dataset.document import DatasetDocument
from engine.dataset.files import File, Item, StoreError, absolute, files_of, items_of
from engine.dataset.index import PreparedIndex, PreparedTokenizer, Shard, write_index
from engine.dataset.shards import RefusedRecord, ShardWork, write_shard
from engine.dataset.streams import SHARDS
from engine.dataset.tokenizer import TextTokenizer
from engine.documents import read_json, read_text
from engine.errors import InputError, reason_of
from engine.inputs import parse

GO_ON = "To go on from here, run the same command again"

_tokenizer: TextTokenizer | None = None  # of a child process


def prepare(
    document: DatasetDocument,
    out: Path,
    *,
    processes: int,
    begin: Callable[[int], None] = lambda total: None,
    report: Callable[[int], None] = lambda done: None,
) -> PreparedIndex:
    """Write the folder `out`, which must not exist.

    Parameters
    ----------
    begin, report : are told the bytes of input of all sources, and those that are done since the last call.

    Raises
    ------
    InputError
        A source or the tokenizer cannot be read; a record cannot and is not to be skipped; `out` cannot be
        written; or a process ended.
    """
    document = _absolute(document)
    if os.path.lexists(out):
        raise InputError("--out", str(out), "exists already: name a new folder")
    tokenizer = TextTokenizer(document.tokenizer)
    for number, source in enumerate(document.sources):
        if source.messages:
            try:
                tokenizer.chat_template()
            except InputError as error:
                raise InputError(f"sources[{number}].messages", source.messages, error.allowed) from None
    files = [files_of(source, f"sources[{n}]") for n, source in enumerate(document.sources)]
    items = items_of(document.sources, files)
    begin(sum(item.size for item in items))
    try:
        key = _key(document, tokenizer, files)
        with _partial(out, key) as partial:
            shards = _shards(document, items, partial / SHARDS, processes, report)
            index = PreparedIndex(
                document=document,
                tokenizer=PreparedTokenizer(
                    xxh3_128=tokenizer.digest, vocabulary=tokenizer.vocabulary, eos=tokenizer.eos
                ),
                dtype="uint16" if tokenizer.dtype.itemsize == 2 else "uint32",
                files=sum(map(len, files)),
                inputs_sha256=key,
                shards=shards,
            )
            if not any(shard.documents for shard in shards):
                raise InputError("sources", len(document.sources), "hold no document")
            tokenizer.copy_to(partial)
            write_index(index, partial)
            _finish(partial, out)
    except OSError as error:
        raise InputError("--out", str(out), f"cannot be written ({reason_of(error)})") from None
    return index


def _absolute(document: DatasetDocument) -> DatasetDocument:
    sources = [source.model_copy(update={"path": absolute(source.path)}) for source in document.sources]
    return document.model_copy(update={"sources": sources, "tokenizer": absolute(document.tokenizer)})


def _key(document: DatasetDocument, tokenizer: TextTokenizer, files: list[list[File]]) -> str:
    """What the shards of a folder depend on."""
    stated = [(file.path, file.size, file.version) for listed in files for file in listed]
    text = json.dumps([document.model_dump(mode="json"), tokenizer.digest, stated])
    return hashlib.sha256(text.encode()).hexdigest()


@contextlib.contextmanager
def _partial(out: Path, key: str) -> Iterator[Path]:
    """The folder that becomes `out`: that of an earlier command of the same key, else an empty one."""
    folder = out.absolute().parent / f".{out.name}.partial"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "key").open("a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError("--out", str(out), "is being prepared by another process") from None
        file.seek(0)
        if file.read() != key:
            shutil.rmtree(folder / SHARDS, ignore_errors=True)
            file.seek(0)
            file.truncate()
            file.write(key)
            file.flush()
        (folder / SHARDS).mkdir(exist_ok=True)
        yield folder


def _finish(partial: Path, out: Path) -> None:
    """Turn the partial folder into `out`."""
    for path in (partial / SHARDS).glob("*.json"):
        path.unlink()
    (partial / "key").unlink()
    os.rename(partial, out)


def _shards(
    document: DatasetDocument, items: list[Item], folder: Path, processes: int, report: Callable[[int], None]
) -> list[Shard]:
    """All shards in order: those that an earlier command finished, and those that are made now."""
    shards: dict[int, Shard] = {}
    waiting = []
    for number, item in enumerate(items):
        done = folder / f"{number:05d}.json"
        if done.exists():
            shards[number] = parse(Shard, read_json(read_text(done)))
            report(item.size)
        else:
            waiting.append(number)
    work = [
        ShardWork(document=document, item=items[number], name=f"{number:05d}", folder=str(folder))
        for number in waiting
    ]
    for index, shard in _written(work, document.tokenizer, processes, report):
        shards[waiting[index]] = shard
    return [shards[number] for number in sorted(shards)]


def _written(
    work: list[ShardWork], tokenizer: str, processes: int, report: Callable[[int], None]
) -> Iterator[tuple[int, Shard]]:
    if not work:
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    count = min(processes, len(work))
    with ProcessPoolExecutor(count, context, initializer=_start, initargs=(tokenizer,)) as pool:
        try:
            futures: dict[Future[Shard], int] = {pool.submit(_work, one): n for n, one in enumerate(work)}
            left = set(futures)
            while left:
                done, left = wait(left, return_when=FIRST_COMPLETED)
                for future in sorted(done, key=futures.__getitem__):
                    yield futures[future], future.result()
                    report(work[futures[future]].item.size)
        except RefusedRecord as error:
            source, where, why = error.args
            allowed = f"{where} {why}. With on_bad: skip it is left out"
            raise InputError(f"sources[{source}]", where.rpartition("/")[2], allowed) from None
        except StoreError as error:
            path, why = error.args
            raise InputError("sources", path, f"cannot be read ({why}). {GO_ON}") from None
        except BrokenProcessPool:
            allowed = f"one of them was ended from outside; is there enough memory? {GO_ON}"
            raise InputError("--processes", processes, allowed) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _start(tokenizer: str) -> None:
    global _tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the command, which waits for begun shards
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _tokenizer = TextTokenizer(tokenizer)


def _end_with_parent() -> None:
    """Leave with the command, however it ends: a pool's process would wait for work for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(work: ShardWork) -> Shard:
    assert _tokenizer is not None
    return write_shard(work, _tokenizer)
