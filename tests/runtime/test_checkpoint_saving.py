"""Saving beside training: all or nothing, the old ones stay, and only so many."""

import errno
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine.errors import InputError
from engine.job.checkpoint.manifest import (
    Checkpoint,
    DataPosition,
    Manifest,
    RandomState,
    check_fits,
    find,
    latest_in,
    newest_of_run,
)
from engine.job.checkpoint.place import MANIFEST, PARTIAL, Place, open_place
from engine.job.sections.persistence import CheckpointSettings
from engine.train.checkpoint.keeper import report_resumed
from engine.train.checkpoint.layers import copy_of, load_into, to_bytes
from engine.train.checkpoint.saver import Saver, Terms
from tests.events import as_dicts
from tests.runtime.jobs import job
from tests.waiting import LIMIT_S


class DictStore:
    """A rendezvous store in memory; `get` waits for the key, as TCPStore's does."""

    def __init__(self) -> None:
        self._values: dict[str, str] = {}
        self._changed = threading.Condition()

    def check(self, keys: list[str], /) -> bool:
        with self._changed:
            return all(key in self._values for key in keys)

    def get(self, key: str, /) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, timeout=LIMIT_S)
            return self._values[key].encode()

    def set(self, key: str, value: str, /) -> None:
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def delete_key(self, key: str, /) -> bool:
        with self._changed:
            return self._values.pop(key, None) is not None


class Ranks:
    """Two writers of a run, each with one layer, in threads of this process."""

    def __init__(self, place: Place, settings: CheckpointSettings, **changes: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.weights = {0: torch.zeros(3), 1: torch.ones(2)}
        self.of = job(**changes)
        store = DictStore()
        terms = Terms(settings=settings, place=place, writers=(0, 1), leader=0, manifest=self._manifest)
        self.savers = [
            Saver(
                terms,
                store,
                rank=rank,
                emit=as_dicts(self.events),
                copies=lambda rank=rank: {rank: {"weights.w": self.weights[rank].clone()}},
            )
            for rank in (0, 1)
        ]

    def _manifest(self, step: int, saved_at: float, files: list) -> Manifest:
        return Manifest(
            version="0",
            saved_at=saved_at,
            step=step,
            model=self.of.model.model_dump(),
            dtype=self.of.device.dtype,
            seed=self.of.optimizer.seed,
            global_batch=self.of.cell.global_batch,
            layers=files,
            data=DataPosition(fingerprint="aa", sequences=step),
            rng=RandomState(key=[7, step]),
        )

    def step(self, step: int) -> None:
        for saver in self.savers:
            saver.save(step)
        # What training does next must not reach the copies that are being written.
        for weight in self.weights.values():
            weight.add_(1.0)
        self.savers[0].sound(step)

    def close(self) -> list[str]:
        for saver in self.savers:
            saver.close()
        return [event["state"] for event in self.events]


@pytest.fixture(params=["folder", "url"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "folder":
        yield str(tmp_path / "run")
        return
    import fsspec

    yield "memory://checkpoints"
    fsspec.filesystem("memory").store.clear()


def settings(where: str, **changes: Any) -> CheckpointSettings:
    return CheckpointSettings(**{"dir": where, "every": 1, "keep": 2, **changes})


def test_what_is_found_is_what_was_there_at_the_boundary(where: str) -> None:
    ranks = Ranks(open_place(where), settings(where))
    for step in (1, 2, 3):
        ranks.step(step)
    assert ranks.close() == ["saved"] * 3
    gone = ranks.events[0]["where"]
    assert [event.get("removed") for event in ranks.events] == [None, None, [gone]], "keep 2"
    checkpoint = find(where)
    assert checkpoint.manifest.step == 3
    assert [layer.number for layer in checkpoint.manifest.layers] == [0, 1]
    # after step 3 the weights had grown twice
    assert checkpoint.layer(0) == to_bytes({"weights.w": torch.zeros(3) + 2})
    assert checkpoint.layer(1) == to_bytes({"weights.w": torch.ones(2) + 2})
    assert find(checkpoint.where).name == checkpoint.name
    assert len(open_place(where).names()) == 2, "keep 2"


def test_the_newest_of_a_run_is_found_by_one_that_is_gone(where: str) -> None:
    place = open_place(where)
    ranks = Ranks(place, settings(where, keep=1))
    ranks.step(1)
    ranks.step(2)
    assert ranks.close() == ["saved"] * 2
    first = ranks.events[0]["where"]
    other = Ranks(place, settings(where, keep=2))
    other.step(3)
    other.close()
    assert find(newest_of_run(first)).manifest.step == 2, "neither the one that is gone nor another run's"
    assert find(where).manifest.step == 3
    with pytest.raises(InputError, match="holds no complete checkpoint"):
        find(first)
    with pytest.raises(InputError, match="holds no complete checkpoint"):
        find(newest_of_run(f"{where}/step-000000001-none"))


def test_a_disk_that_is_full_leaves_the_last_checkpoint(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = open_place(where)
    ranks = Ranks(place, settings(where, keep=1))
    ranks.step(1)
    ranks.close()
    write = place.write

    def full(name: str, file: str, data: bytes) -> None:
        if file.startswith("layer-00001"):
            raise OSError(errno.ENOSPC, "No space left on device")
        write(name, file, data)

    later = Ranks(place, settings(where, keep=1))
    monkeypatch.setattr(place, "write", full)
    later.step(2)
    assert later.close() == ["failed"]
    assert "No space left" in later.events[0]["detail"]
    assert find(where).manifest.step == 1
    monkeypatch.undo()
    again = Ranks(place, settings(where, keep=1))
    again.step(2)
    assert again.close() == ["saved"]
    assert [find(where).manifest.step, len(place.names())] == [2, 1]


def test_no_checkpoint_of_a_step_whose_loss_is_not_known_to_be_sound(tmp_path: Path) -> None:
    place = open_place(str(tmp_path))
    ranks = Ranks(place, settings(str(tmp_path)))
    for saver in ranks.savers:
        saver.save(1)
    thread = threading.Thread(target=ranks.close)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    assert place.names() == []
    ranks.savers[0].sound(1)
    thread.join(30)
    assert len(place.names()) == 1


def test_half_a_checkpoint_is_none_and_is_swept_when_old(tmp_path: Path) -> None:
    import os

    place = open_place(str(tmp_path))
    place.write("step-000000009-x", "layer-00000.safetensors", b"half")
    assert latest_in(place) is None
    with pytest.raises(InputError, match="holds no complete checkpoint"):
        find(str(tmp_path))
    place.sweep()
    assert (tmp_path / f"{PARTIAL}step-000000009-x").exists(), "somebody may be writing it"
    os.utime(tmp_path / f"{PARTIAL}step-000000009-x", (1, 1))
    place.sweep()
    assert not list(tmp_path.iterdir())


def test_a_place_that_cannot_be_written_is_refused_before_the_run(where: str, tmp_path: Path) -> None:
    open_place(where).prepare()
    assert open_place(where).names() == []
    (tmp_path / "file").write_text("no folder")
    for refused in (str(tmp_path / "file"), str(tmp_path / "file" / "below")):
        with pytest.raises(InputError, match=r"checkpoint.dir.*cannot be written"):
            open_place(refused).prepare()
    with pytest.raises(InputError, match=r"checkpoint.dir.*cannot be opened"):
        open_place("nowhere://x")


def test_nodes_that_do_not_share_the_folder_are_told(tmp_path: Path) -> None:
    ranks = Ranks(open_place(str(tmp_path / "a")), settings(str(tmp_path / "a")))
    ranks.savers[1]._terms = Terms(  # rank 1 sees a folder of the same name on another disk
        settings=settings("b"),
        place=open_place(str(tmp_path / "b")),
        writers=(0, 1),
        leader=0,
        manifest=ranks._manifest,
    )
    ranks.step(1)
    assert ranks.close() == ["failed"]
    assert "layer-00001.safetensors" in ranks.events[0]["detail"]
    assert "all nodes share" in ranks.events[0]["detail"]


def test_kept_by_size_and_never_those_of_another_training(tmp_path: Path) -> None:
    where = str(tmp_path)
    other = Ranks(open_place(where), settings(where), seed=8)
    other.step(5)
    other.close()
    size = find(where).manifest.total_bytes
    ranks = Ranks(open_place(where), settings(where, keep=100, max_gb=2.5 * size / 1e9))
    for step in range(1, 5):
        ranks.step(step)
    ranks.close()
    place = open_place(where)
    manifests = [Checkpoint(place, name).manifest for name in place.names()]
    left = sorted((manifest.seed, manifest.step) for manifest in manifests)
    assert left == [(7, 3), (7, 4), (8, 5)]


def saved(folder: Path) -> Checkpoint:
    ranks = Ranks(open_place(str(folder)), settings(str(folder)))
    ranks.step(2)
    ranks.close()
    return find(str(folder))


def test_corrupt_files_are_refused_by_name(tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    path = Path(checkpoint.where) / "layer-00001.safetensors"
    whole = path.read_bytes()
    for position in (0, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        with pytest.raises(InputError, match=r"layer-00001.*corrupt"):
            checkpoint.layer(1)
    path.write_bytes(whole[:-1])
    with pytest.raises(InputError, match=r"layer-00001.*corrupt"):
        checkpoint.layer(1)
    path.unlink()
    with pytest.raises(InputError, match="cannot be read"):
        checkpoint.layer(1)
    with pytest.raises(InputError, match="holds no layer 7"):
        checkpoint.layer(7)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"step": 2', '"step": 3'), "corrupt"),
        (lambda text: text[:-5], "corrupt"),
        (lambda text: "[]", "corrupt"),
        (lambda text: text.replace('"format": 1', '"format": 99'), "format 99"),
    ],
)
def test_corrupt_manifests_are_refused(change: Any, message: str, tmp_path: Path) -> None:
    path = Path(saved(tmp_path).where) / MANIFEST
    path.write_text(change(path.read_text()))
    with pytest.raises(InputError, match=message):
        find(str(tmp_path))


def torn_in_the_middle(folder: Path) -> None:
    file = folder / "layer-00001.safetensors"
    file.write_bytes(file.read_bytes()[:-7])


@pytest.mark.parametrize(
    ("tear", "message"),
    [
        (torn_in_the_middle, "layer-00001.safetensors has"),
        (lambda folder: (folder / "layer-00001.safetensors").unlink(), "layer-00001.safetensors is missing"),
        (lambda folder: (folder / MANIFEST).write_bytes(b""), "is corrupt"),
    ],
)
def test_a_torn_latest_checkpoint_gives_way_to_the_whole_one_before(
    tear: Any, message: str, tmp_path: Path
) -> None:
    ranks = Ranks(open_place(str(tmp_path)), settings(str(tmp_path), keep=3))
    for step in (1, 2, 3):
        ranks.step(step)
    ranks.close()
    assert find(str(tmp_path)).passed_over == ()
    steps = {int(name.split("-")[1]): name for name in open_place(str(tmp_path)).names()}
    tear(tmp_path / steps[3])
    checkpoint = find(str(tmp_path))
    assert checkpoint.manifest.step == 2
    (passed,) = checkpoint.passed_over
    assert steps[3] in str(passed)
    assert message in passed.why
    events: list[dict[str, Any]] = []
    report_resumed(checkpoint, job(), 0, as_dicts(events))
    (torn,) = events
    assert (torn["step"], torn["state"], torn["where"]) == (3, "torn", str(tmp_path / steps[3]))
    assert torn["detail"] == passed.why
    tear(tmp_path / steps[2])
    assert len(find(str(tmp_path)).passed_over) == 2
    tear(tmp_path / steps[1])
    with pytest.raises(InputError, match=message):
        find(str(tmp_path))


def test_an_older_torn_checkpoint_is_no_news(tmp_path: Path) -> None:
    ranks = Ranks(open_place(str(tmp_path)), settings(str(tmp_path)))
    ranks.step(1)
    ranks.step(2)
    ranks.close()
    first = min(open_place(str(tmp_path)).names())
    torn_in_the_middle(tmp_path / first)
    assert find(str(tmp_path)).passed_over == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"layers": 4, "hidden": 32, "heads": 2, "seq": 16}}, "another model: layers 3"),
        ({"model": {"layers": 3, "hidden": 32, "heads": 4, "seq": 16}}, "another model: heads 2"),
        ({"dtype": "fp64"}, "another dtype"),
        ({"seed": 8}, "another seed"),
        ({"microbatches": 4}, "another global batch: 12, this job has 16"),
        ({"steps": 2}, "more steps are needed"),
    ],
)
def test_of_another_job(changes: dict, message: str, tmp_path: Path) -> None:
    checkpoint = saved(tmp_path)
    with pytest.raises(InputError, match=message):
        check_fits(checkpoint, job(**changes), "aa")
    with pytest.raises(InputError, match="another data, tokenizer"):
        check_fits(checkpoint, job(), "bb")
    # the same batch, cut otherwise
    check_fits(checkpoint, job(pipelines=1, microbatches=6, policy="gpipe", lr=0.5), "aa")


def test_layers_come_back_bit_by_bit(tmp_path: Path) -> None:
    torch.manual_seed(3)
    layer = nn.Linear(5, 4)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)

    def train(of: nn.Module, by: torch.optim.Optimizer, steps: range) -> None:
        for step in steps:
            by.zero_grad()
            of(torch.full((2, 5), float(step))).square().sum().backward()
            by.step()

    train(layer, optimizer, range(3))
    place = open_place(str(tmp_path))
    terms = Terms(
        settings=settings(str(tmp_path)),
        place=place,
        writers=(0,),
        leader=0,
        manifest=Ranks(place, settings(str(tmp_path)))._manifest,
    )
    saver = Saver(
        terms, DictStore(), rank=0, emit=lambda event: None, copies=lambda: {0: copy_of(layer, optimizer)}
    )
    saver.save(3)
    saver.sound(3)
    train(layer, optimizer, range(3, 6))
    saver.close()

    again = nn.Linear(5, 4)
    resumed = torch.optim.AdamW(again.parameters(), lr=0.1, fused=True)
    load_into(again, resumed, find(str(tmp_path)), 0)
    train(again, resumed, range(3, 6))
    for ours, theirs in zip(again.parameters(), layer.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    wide = nn.Linear(6, 4)
    with pytest.raises(InputError, match=r"needs weights.weight \(4, 6\)"):
        load_into(wide, torch.optim.AdamW(wide.parameters()), find(str(tmp_path)), 0)
    manifest = json.loads((Path(find(str(tmp_path)).where) / MANIFEST).read_text())
    assert manifest["layers"][0]["shapes"]["exp_avg_sq.bias"] == [4]
