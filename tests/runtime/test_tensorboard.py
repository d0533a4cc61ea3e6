"""Events for TensorBoard: read back by a reader of the record format, checksums and all."""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto import event_pb2

from engine.commands.train import _events_in
from engine.errors import InputError
from engine.train.tensorboard import TensorBoard
from tests.events import event


def crc32c(data: bytes) -> int:
    """Castagnoli's checksum, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data: bytes) -> int:
    """As records hold it: rotated by 15 bits, plus a constant."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def scalars(folder: Path) -> Iterator[tuple[str, int, float, float]]:
    """(tag, step, wall time, value) of every scalar in the one file of `folder`."""
    [file] = folder.glob("events.out.tfevents.*")
    data, at = file.read_bytes(), 0
    while at < len(data):
        length, check = struct.unpack_from("<QI", data, at)
        assert check == masked(data[at : at + 8])
        record = data[at + 12 : at + 12 + length]
        assert struct.unpack_from("<I", data, at + 12 + length) == (masked(record),)
        event = event_pb2.Event.FromString(record)
        for value in event.summary.value:
            yield value.tag, event.step, event.wall_time, value.simple_value
        at += 16 + length


def step(iteration: int, **figures: Any) -> Any:
    return event("step", iteration=iteration, t=1e9 + iteration, loss=2.0 - iteration, **figures)


def test_every_figure_stands_under_its_tag_at_its_step_and_time(tmp_path: Path) -> None:
    events = TensorBoard(tmp_path / "runs" / "a")
    events.step(step(0, grad_norm=0.5, learning_rate=0.25, tokens=64))
    events.step(step(1, grad_norm=None, learning_rate=None, tokens=32))
    events.validation(event("validation", step=2, loss=1.5, t=1e9 + 1.5))
    events.close()
    assert list(scalars(tmp_path / "runs" / "a")) == [
        ("loss/train", 1, 1e9, 2.0),
        ("optimizer/grad_norm", 1, 1e9, 0.5),
        ("optimizer/learning_rate", 1, 1e9, 0.25),
        ("data/tokens", 1, 1e9, 64.0),
        ("loss/train", 2, 1e9 + 1, 1.0),
        ("data/tokens", 2, 1e9 + 1, 32.0),
        ("loss/validation", 2, 1e9 + 1.5, 1.5),
    ]


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"--tensorboard: .*cannot be written"):
        _events_in(tmp_path / "file" / "below")
