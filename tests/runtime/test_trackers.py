"""What trackers wrote, read back: TensorBoard's records and checksums, MLflow's store, wandb's file."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tensorboardX.proto import event_pb2

from engine.commands.train import command
from engine.errors import InputError
from engine.job.sections.tracking import TrackingSection
from engine.train import trackers
from engine.train.trackers import TRACKERS, check_trackers, figures_of
from engine.train.trackers.base import TrackedRun
from tests.events import event
from tests.runtime.jobs import Run, document, job


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


RUN = TrackedRun(name="a-run", document={"optimizer": {"lr": 0.25, "steps": 2}})


def fed(name: str, folder: Path) -> None:
    """Have a tracker take two steps and a validation."""
    folder.mkdir(parents=True, exist_ok=True)
    tracker = TRACKERS[name](folder, RUN)
    events = [
        step(0, grad_norm=0.5, learning_rate=0.25, tokens=64, bits_per_byte=3.0),
        step(1, grad_norm=None, learning_rate=None, tokens=32),
        event("validation", step=2, loss=1.5, t=1e9 + 1.5, bits_per_byte=2.5),
    ]
    for one in events:
        figures, number = figures_of(one)
        tracker.add(figures, number, one.t)
    tracker.close("finished")


def step(iteration: int, **figures: Any) -> Any:
    return event("step", iteration=iteration, t=1e9 + iteration, loss=2.0 - iteration, **figures)


WRITTEN = [
    ("loss/train", 1, 1e9, 2.0),
    ("bits_per_byte/train", 1, 1e9, 3.0),
    ("optimizer/grad_norm", 1, 1e9, 0.5),
    ("optimizer/learning_rate", 1, 1e9, 0.25),
    ("data/tokens", 1, 1e9, 64.0),
    ("loss/train", 2, 1e9 + 1, 1.0),
    ("data/tokens", 2, 1e9 + 1, 32.0),
    ("loss/validation", 2, 1e9 + 1.5, 1.5),
    ("bits_per_byte/validation", 2, 1e9 + 1.5, 2.5),
]


def test_tensorboard_has_every_figure_under_its_name_at_its_step_and_time(tmp_path: Path) -> None:
    fed("tensorboard", tmp_path / "runs" / "a")
    assert list(scalars(tmp_path / "runs" / "a")) == WRITTEN


def test_mlflow_has_every_figure_and_the_fields_of_the_document(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs meridian[mlflow]")
    from mlflow.tracking import MlflowClient

    fed("mlflow", tmp_path)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    [experiment] = [one for one in client.search_experiments() if one.name == "meridian"]
    [run] = client.search_runs([experiment.experiment_id])
    assert (run.info.run_name, run.info.status) == ("a-run", "FINISHED")
    assert run.data.params == {"optimizer.lr": "0.25", "optimizer.steps": "2"}
    written = [
        (name, metric.step, metric.timestamp / 1e3, metric.value)
        for name in dict.fromkeys(name for name, *_ in WRITTEN)
        for metric in client.get_metric_history(run.info.run_id, name)
    ]
    assert sorted(written) == sorted(WRITTEN)


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a file in LevelDB's log format, after the header of wandb: blocks of 32 KiB."""
    at, record = 7, b""
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part
            yield record
            record = b""


def test_wandb_has_every_figure_and_the_document(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="needs meridian[wandb]")
    from wandb.proto import wandb_internal_pb2

    fed("wandb", tmp_path)
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    written, config, name = [], {}, ""
    for data in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(data)
        if record.WhichOneof("record_type") == "run":
            name = name or record.run.display_name
        for item in (*record.run.config.update, *record.config.update):
            config["/".join(item.nested_key) or item.key] = json.loads(item.value_json)
        if record.WhichOneof("record_type") == "history":
            row = {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
            number, t = int(row.pop("_step")), row.pop("_timestamp")
            written += [(key, number, t, value) for key, value in row.items() if not key.startswith("_")]
    assert (name, config["optimizer"]) == ("a-run", {"lr": 0.25, "steps": 2})
    assert sorted((key, n, value) for key, n, _, value in written) == sorted(
        (key, n, value) for key, n, _, value in WRITTEN
    )


def test_a_run_hands_its_figures_to_the_trackers_of_its_document(tmp_path: Path) -> None:
    folder = tmp_path / "board"
    validation = {"every": 2, "sequences": 2}
    train_job = job(tracking={"tensorboard": str(folder)}, steps=3, validation=validation)
    result = Run(train_job, str(tmp_path / "log")).result()
    assert result["tracking"] == {"folders": {"tensorboard": str(folder)}, "failure": None}
    rows = list(scalars(folder))
    for name, values in (
        ("loss/train", list(enumerate(result["losses"], 1))),
        ("bits_per_byte/train", list(enumerate(result["bits_per_byte"], 1))),
        ("loss/validation", [(row["step"], row["loss"]) for row in result["validation"]]),
    ):
        assert len(values) > 1
        assert [(n, value) for tag, n, _, value in rows if tag == name] == [
            (n, pytest.approx(value, rel=1e-6)) for n, value in values
        ]


def test_a_tracker_that_fails_does_not_end_the_run_which_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tensorboardX.py").write_text("raise OSError('the disk is full')")
    monkeypatch.setenv("PYTHONPATH", f"{broken}:{Path.cwd()}")
    train_job = job(tracking={"tensorboard": str(tmp_path / "board")}, steps=2)
    run = Run(train_job, str(tmp_path / "log"))
    result = run.result()
    assert len(result["losses"]) == 2
    assert "the disk is full" in result["tracking"]["failure"]
    assert any("Trackers write no more" in entry["line"] for entry in run.of_kind("log"))


def test_a_folder_that_cannot_be_made_is_named_by_its_option_or_field(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    below = str(tmp_path / "file" / "below")
    with pytest.raises(InputError, match=r"tracking.tensorboard: .*cannot be written"):
        check_trackers(TrackingSection(tensorboard=below))
    (tmp_path / "job.json").write_text(json.dumps(document(steps=1)))
    answer = CliRunner().invoke(command, [str(tmp_path / "job.json"), "--tensorboard", below])
    assert isinstance(answer.exception, InputError)
    assert answer.exception.field == "--tensorboard"


@pytest.mark.parametrize(("name", "package"), [("mlflow", "mlflow"), ("wandb", "wandb")])
def test_a_package_that_is_not_there_is_named_with_its_extra(
    name: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trackers, "find_spec", lambda asked: None if asked == package else object())
    with pytest.raises(InputError) as caught:
        check_trackers(TrackingSection(**{name: str(tmp_path)}))
    assert caught.value.field == f"tracking.{name}"
    assert f"pip install 'meridian[{name}]'" in caught.value.allowed
