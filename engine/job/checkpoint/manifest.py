"""`manifest.json` of a checkpoint: the model, the training data, and the checksums of the layers' files."""

import fnmatch
import json
import re
from typing import Annotated, Any, Literal, NamedTuple, Self

import xxhash
from pydantic import Field

from engine.documents import read_json
from engine.errors import InputError, reason_of
from engine.inputs import Count, Document, Index, parse
from engine.job.changed import fields_of
from engine.job.checkpoint.place import MANIFEST, Place, open_place, split
from engine.job.job import TrainJob
from engine.job.model_document import ConfigModel, TrainModel, read_model

FORMAT = 1
_NAME = re.compile(r"^step-([0-9]+)-")
Data = bytes  # of a file; `bytes` is a field below
Hex = Annotated[str, Field(pattern="^[0-9a-f]+$")]


class Torn(InputError):
    """Files of a checkpoint are not as they were written: its machine lost power, or its disk failed."""


class PassedOver(NamedTuple):
    """A torn checkpoint that was looked at before a whole one: its step, where it is, and what is torn."""

    step: int
    where: str
    why: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


class SavedFile(Document):
    """A file of the checkpoint; xxh3 is of its bytes (128 bits, hex)."""

    file: Annotated[str, Field(pattern=r"^[a-z]+(-\d+)?\.[a-z]+$")]
    bytes: Count
    xxh3: Hex

    @classmethod
    def of(cls, file: str, data: Data, **more: Any) -> Self:
        """The entry of a file that holds `data`."""
        return cls(file=file, bytes=len(data), xxh3=xxhash.xxh3_128_hexdigest(data), **more)


class LayerFile(SavedFile):
    """One layer's safetensors file; `number` is the layer's place in the model, 0 the embedding.

    shapes : of its tensors by name.
    """

    number: Index
    shapes: dict[str, list[Index]]


class DataPosition(Document):
    """The training text (its fingerprint), and the number of sequences read so far."""

    fingerprint: Hex
    sequences: Index


class RandomState(Document):
    """The only random numbers after the initial weights are the order of the data, and it is counted.

    A step's sequences are drawn by Philox under the key (seed, step): the next step's key is the whole state.
    """

    generator: Literal["philox"] = "philox"
    key: Annotated[list[Index], Field(min_length=2, max_length=2)]


class Manifest(Document):
    """A whole checkpoint after `step` steps.

    saved_at : Unix seconds; along one line of runs it only grows. model : the job's model document.
    layers : in order, every layer once. tokenizer : None where the model reads bytes.
    job : the sections `cell`, `optimizer` and `strategy` of the run that wrote it; None in older checkpoints.
    """

    format: Literal[1] = 1
    version: str
    saved_at: float
    step: Count
    model: dict[str, Any]
    dtype: str
    seed: Index
    global_batch: Count
    optimizer: Literal["adamw"] = "adamw"
    data: DataPosition
    rng: RandomState
    layers: Annotated[list[LayerFile], Field(min_length=1)]
    tokenizer: SavedFile | None = None
    job: dict[str, dict[str, Any]] | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes of all layers."""
        return sum(layer.bytes for layer in self.layers)

    @property
    def line(self) -> tuple[Any, ...]:
        """The identity that all checkpoints of one training share; older ones of it may be deleted."""
        model = json.dumps({**self.model, "tokenizer": None, "init": None}, sort_keys=True)
        return model, self.dtype, self.seed, self.global_batch, self.data.fingerprint

    @property
    def shape(self) -> TrainModel | ConfigModel:
        """The model document, parsed. Raises InputError where this version does not know its fields."""
        return read_model(self.model, at="model")

    def to_bytes(self) -> bytes:
        """The file: the manifest's fields and a checksum over them."""
        fields = self.model_dump(mode="json")
        return json.dumps({**fields, "xxh3": _checksum(fields)}, indent=1).encode()


class Checkpoint:
    """A published checkpoint that was found, its manifest read and checked.

    passed_over : newer ones that are torn: they were looked at before this one.

    Raises
    ------
    InputError
        The manifest cannot be read, is corrupt or of another format.
    """

    def __init__(self, place: Place, name: str, *, field: str = "persistence.resume") -> None:
        self.place, self.name, self._field = place, name, field
        self.where = f"{place.where.rstrip('/')}/{name}"
        self.manifest = self._read_manifest()
        self.passed_over: tuple[PassedOver, ...] = ()

    def require_whole(self) -> None:
        """Raise Torn where a file is missing or has another length than was written.

        What stands in the files is compared with its checksum when it is read.
        """
        tokenizer = [self.manifest.tokenizer] if self.manifest.tokenizer else []
        for entry in (*self.manifest.layers, *tokenizer):
            length = self.place.length(self.name, entry.file)
            if length is None:
                raise Torn(self._field, self.where, f"is torn: {entry.file} is missing")
            if length != entry.bytes:
                allowed = f"is torn: {entry.file} has {length:,} of its {entry.bytes:,} bytes"
                raise Torn(self._field, self.where, allowed)

    def layer(self, number: int) -> bytes:
        """The file of one layer. Raises InputError where it is missing, or not what was written."""
        entry = next((layer for layer in self.manifest.layers if layer.number == number), None)
        if entry is None:
            raise InputError(self._field, self.where, f"holds no layer {number}")
        return self.read(entry)

    def read(self, entry: SavedFile) -> bytes:
        """A file of the checkpoint. Raises InputError where it is missing, or not what was written."""
        try:
            data = self.place.read(self.name, entry.file)
        except OSError as error:
            raise InputError(
                self._field, self.where, f"{entry.file} cannot be read ({reason_of(error)})"
            ) from None
        if len(data) != entry.bytes or xxhash.xxh3_128_hexdigest(data) != entry.xxh3:
            allowed = f"{entry.file} is corrupt: it differs from the {entry.bytes:,} bytes that were written"
            raise InputError(self._field, self.where, allowed)
        return data

    def _read_manifest(self) -> Manifest:
        where = self.where
        try:
            fields = read_json(self.place.read(self.name, MANIFEST))
            checksum = fields.pop("xxh3")
        except OSError as error:
            raise Torn(self._field, where, f"{MANIFEST} cannot be read ({reason_of(error)})") from None
        except (ValueError, AttributeError, KeyError, TypeError):
            raise Torn(
                self._field, where, f"{MANIFEST} is corrupt: it is not the manifest of a checkpoint"
            ) from None
        if fields.get("format") != FORMAT:
            allowed = f"{MANIFEST} is of format {fields.get('format')!r}; this version reads format {FORMAT}"
            raise InputError(self._field, where, allowed)
        if checksum != _checksum(fields):
            raise Torn(self._field, where, f"{MANIFEST} is corrupt: its checksum does not match its content")
        return parse(Manifest, fields, at=f"{where}/{MANIFEST}")


def find(where: str, *, field: str = "persistence.resume") -> Checkpoint:
    """Return the checkpoint at a path or URL, or the latest one in that folder.

    Stars in the last part stand for any text: the latest of the checkpoints so named (see `newest_of_run`).

    Raises
    ------
    InputError
        There is none that is whole, or the one that is named is corrupt.
    """
    parent, name = split(where)
    try:
        if name in (place := open_place(parent)).names():
            return Checkpoint(place, name, field=field)
        within = (place, name) if "*" in name else (open_place(where), "*")
        latest = latest_in(*within, field=field)
    except OSError as error:
        raise InputError(field, where, f"cannot be read ({reason_of(error)})") from None
    if latest is None:
        raise InputError(field, where, "holds no complete checkpoint")
    return latest


def latest_in(place: Place, named: str = "*", *, field: str = "persistence.resume") -> Checkpoint | None:
    """The checkpoint that was saved last of those that are whole, None where there is none at all.

    Torn ones are passed over, and named in `passed_over`. Raises InputError where all of them are torn, or
    one is of another version.
    """
    checkpoints: list[Checkpoint] = []
    torn: list[tuple[str, Torn]] = []
    for name in sorted(fnmatch.filter(place.names(), named), reverse=True):
        try:
            checkpoints.append(Checkpoint(place, name, field=field))
        except Torn as error:
            torn.append((name, error))
    for checkpoint in sorted(checkpoints, key=lambda one: one.manifest.saved_at, reverse=True):
        try:
            checkpoint.require_whole()
        except Torn as error:
            torn.append((checkpoint.name, error))
            continue
        newer = (_passed_over(name, error) for name, error in torn if name >= checkpoint.name)
        checkpoint.passed_over = tuple(newer)
        return checkpoint
    if torn:
        raise torn[0][1]
    return None


def _passed_over(name: str, error: Torn) -> PassedOver:
    numbered = _NAME.match(name)
    return PassedOver(step=int(numbered[1]) if numbered else 0, where=str(error.value), why=error.allowed)


def name_of(step: int, nonce: str) -> str:
    """The folder of a checkpoint; the nonce is the run's own, so that no name is used twice."""
    return f"step-{step:09d}-{nonce}"


def newest_of_run(where: str) -> str:
    """The argument with which `find` returns the newest checkpoint of the run that wrote the one at `where`.

    The last one that somebody heard of may be gone: it goes once its run has saved `keep` newer ones.
    """
    folder, name = split(where)
    return f"{folder}/{_NAME.sub('step-*-', name)}"


def check_fits(checkpoint: Checkpoint, job: TrainJob, fingerprint: str) -> None:
    """Raise InputError unless the run can go on from the checkpoint exactly as the one that wrote it.

    Stages, data centres, pipelines, policy, learning rate and clip may differ; model, data and order may not.
    """
    manifest = checkpoint.manifest
    # What a tokenizer makes of the text is in the fingerprint; where its file lies does not matter.
    theirs, ours = (_fields_of(model) for model in (manifest.shape, job.model))
    for name in sorted(theirs.keys() | ours.keys()):
        if theirs.get(name) != ours.get(name):
            allowed = f"is of another model: {name} {theirs.get(name)}, this job has {ours.get(name)}"
            raise InputError("persistence.resume", checkpoint.where, allowed)
    pairs = {
        "dtype": (manifest.dtype, job.device.dtype),
        "seed": (manifest.seed, job.optimizer.seed),
        "global batch": (manifest.global_batch, job.cell.global_batch),
        "data, tokenizer or validation.share": (manifest.data.fingerprint, fingerprint),
    }
    for name, (then, now) in pairs.items():
        if then != now:
            allowed = f"was written with another {name}: {then}, this job has {now}"
            raise InputError("persistence.resume", checkpoint.where, allowed)
    if manifest.step >= job.optimizer.steps:
        steps = job.optimizer.steps
        allowed = f"has done {manifest.step} steps; this job ends after {steps}: more steps are needed"
        raise InputError("persistence.resume", checkpoint.where, allowed)


def _fields_of(model: TrainModel | ConfigModel) -> dict[str, Any]:
    """What makes two models the same: not where a tokenizer, or the first weights, are read from."""
    return fields_of(model.model_dump(mode="json", exclude={"tokenizer", "init"}))


def resumed(job: TrainJob, fingerprint: str) -> Checkpoint | None:
    """The checkpoint that the job resumes from; None where it begins with the first step.

    Raises
    ------
    InputError
        There is none at the named place, it is corrupt, or not of this model, data, seed or batch.
    """
    if not job.persistence.resume:
        return None
    if job.persistence.resume is True:
        assert job.persistence.checkpoint is not None, "checked by the job"
        checkpoint = latest_in(open_place(job.persistence.checkpoint.dir))
    else:
        checkpoint = find(job.persistence.resume)
    if checkpoint:
        check_fits(checkpoint, job, fingerprint)
    return checkpoint


def _checksum(fields: dict[str, Any]) -> str:
    return xxhash.xxh3_128_hexdigest(json.dumps(fields, sort_keys=True, separators=(",", ":")).encode())
