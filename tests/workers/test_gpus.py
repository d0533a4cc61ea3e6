"""What an agent reports of its GPUs: NVML's figures, or the memory of the processes that stand for them."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from engine.job.events.base import BaseEvent
from engine.job.events.gpus import GpuFigures, Gpus
from engine.job.events.training import Rank, RankState
from engine.job.file_access import FileAccess
from tests.waiting import LIMIT_S, until
from tests.workers.fake_nvml import NOT_LOADED, OK, Card, Library, stand_in
from tests.workers.launching import FakeGroup, spec
from workers.gpus import GpuWatch, Nvml, process_memory
from workers.ledger import Ledger
from workers.ranks import RankSupervisor

CARDS = {"GPU-aa": Card(), "GPU-bb": Card(utilization=3, used=1, celsius=31, milliwatts=70_250)}


@pytest.mark.parametrize("old", [False, True])
def test_figures_of_cuda_gpus_come_by_uuid(monkeypatch: pytest.MonkeyPatch, old: bool) -> None:
    """The order is torch's, which CUDA_VISIBLE_DEVICES changes and NVML does not know."""
    stand_in(monkeypatch, Library(cards=CARDS, old=old))
    reserved = 500_000_000 if old else 0  # the older question counts it as used
    first, second = Nvml(["bb", "aa"]).read()
    total = 85_000_000_000
    assert first == GpuFigures(
        gpu=0,
        utilization=0.03,
        memory_bytes=1 + reserved,
        memory_total_bytes=total,
        temperature_c=31.0,
        power_w=70.25,
    )
    assert second == GpuFigures(
        gpu=1,
        utilization=0.97,
        memory_bytes=71_000_000_000 + reserved,
        memory_total_bytes=total,
        temperature_c=64.0,
        power_w=612.5,
    )


def test_a_figure_that_a_card_does_not_support_is_left_open(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch, Library(cards={"GPU-aa": Card(utilization=None, celsius=None, milliwatts=None)}))
    known, gone = Nvml(["aa", "zz"]).read()
    assert (known.utilization, known.temperature_c, known.power_w) == (None, None, None)
    assert known.memory_bytes == 71_000_000_000
    assert gone == GpuFigures(gpu=1)


@pytest.mark.parametrize("library", [None, Library(status=NOT_LOADED)], ids=["no library", "no driver"])
def test_a_machine_without_nvml_has_no_figures_and_no_error(
    monkeypatch: pytest.MonkeyPatch, library: Library | None
) -> None:
    stand_in(monkeypatch, library)
    assert Nvml(["aa"]).read() == []


def test_a_driver_that_comes_later_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(cards=CARDS, status=NOT_LOADED)
    stand_in(monkeypatch, library)
    nvml = Nvml(["aa"])
    assert nvml.read() == []
    library.status = OK
    assert len(nvml.read()) == 1
    nvml.read()
    assert library.asked.count("nvmlInitWithFlags") == 2, "it is opened once"


def test_other_devices_report_the_memory_of_their_processes() -> None:
    no_such = 2**22 + 1  # beyond what Linux gives
    [sample] = process_memory([(3, os.getpid()), (1, no_such)])
    assert sample.gpu == 3
    assert sample.memory_bytes is not None
    assert sample.memory_bytes > 1_000_000
    assert (sample.utilization, sample.memory_total_bytes, sample.power_w) == (None, None, None)


def test_what_is_there_is_reported_and_once_that_it_is_gone() -> None:
    reports: list[BaseEvent] = []
    now: list[GpuFigures] = []
    watch = GpuWatch(lambda: list(now), reports.append)
    watch.report()
    assert reports == []
    now.append(GpuFigures(gpu=0, memory_bytes=5))
    watch.report()
    now.clear()
    watch.report()
    watch.report()
    assert [event.gpus for event in reports if isinstance(event, Gpus)] == [
        (GpuFigures(gpu=0, memory_bytes=5),),
        (),
    ]


def test_what_cannot_be_read_once_is_read_again() -> None:
    reports: list[BaseEvent] = []
    calls: list[int] = []
    done = threading.Event()

    def read() -> list[GpuFigures]:
        calls.append(1)
        if len(calls) == 1:
            raise ValueError("a driver's whim")
        return [GpuFigures(gpu=0)]

    def publish(event: BaseEvent) -> None:
        reports.append(event)
        done.set()

    watch = GpuWatch(read, publish, period_s=0.001)
    watch.start()
    assert done.wait(LIMIT_S)
    watch.stop()
    assert isinstance(reports[0], Gpus)


def test_the_supervisor_knows_the_process_of_each_gpu(tmp_path: Path) -> None:
    events: list[Any] = []
    ranks = RankSupervisor(
        node="a",
        logs=tmp_path / "ranks",
        ledger=Ledger(tmp_path / "runs.json"),
        files=FileAccess(roots=()),
        publish=events.append,
        make_group=FakeGroup,
        find_group=lambda *_: None,
    )
    order = spec()
    assert ranks.processes() == []
    ranks.start(order.to_json())
    until(lambda: any(event.kind == "rank" and event.state == "running" for event in events))
    assert ranks.processes() == []  # the stand-ins have no processes
    for rank in order.local:
        message = Rank(rank=rank, state=RankState.RUNNING, pid=os.getpid(), t=1.0)
        ranks._on_event(message.of(order.run, order.generation, 1))
    assert ranks.processes() == [(each.gpu, os.getpid()) for each in order.ranks if each.rank in order.local]
    ranks.stop(order.run, order.generation, 1.0)
    until(lambda: ranks.processes() == [])
