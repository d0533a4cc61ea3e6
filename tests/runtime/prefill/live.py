"""A small training run that prefills, and a gateway to its coordinators."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from engine.control.asyncio_driver import AsyncChannel, call
from engine.control.coordinator_wire import FROM_COORDINATOR, GATEWAY_RANK, Answer
from engine.control.errors import ChannelLost
from engine.control.handshake import Identity
from engine.job.job import TrainJob
from engine.job.launch import Disturbance, single_machine
from engine.prefill.messages import Done, Failed, PrefillRequest, Refused, Token, Withdraw
from engine.run.host_process import PipedHost
from engine.run.launcher import RankGroup
from tests.events import as_dicts
from tests.runtime.jobs import job
from tests.waiting import LIMIT_S

# On a machine that others keep busy, training may be too uneven for a while to leave a bubble.
PASSING = ("no_bubble", "queue_full", "kv_space")


def prefill(folder: Path, **changes: Any) -> dict[str, Any]:
    """The section of a job's document; chunks of at least 16 tokens, so that prompts are cut."""
    return {
        "checkpoint": str(folder),
        "name": "tiny",
        "dtype": "fp32",
        "weight_budget_gb": 0.01,
        "kv_budget_gb": 0.001,
        "latency": {"a_ms": 3, "b_ms": 0.2, "c_ms": 0},
        "chunk_tokens": 16,
        "pause_slowdown": 1.0,
        **changes,
    }


def live_job(folder: Path, **changes: Any) -> TrainJob:
    """Three emulated stages in two data centres, two pipelines, that go on until they are stopped."""
    times = {"forward": 10, "backward": 20, "recompute": 10}
    live = {"device": "emulated", "times_ms": times, "micro_batch": 1, "prefill": prefill(folder)}
    return job(**{**live, "steps": 1_000_000, **changes})


class LiveRun:
    """A run on the emulated device, in two data centres, with a coordinator in each."""

    def __init__(
        self, folder: Path, log_dir: Path, disturbance: Disturbance | None = None, **changes: Any
    ) -> None:
        of = live_job(folder, **changes)
        self.events: list[dict[str, Any]] = []
        self.spec = single_machine(of, run="live", log_dir=str(log_dir), disturbance=disturbance)
        self.group = RankGroup(self.spec, as_dicts(self.events))
        self.group.start()

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in list(self.events) if event["kind"] == kind]

    def coordinator(self, dc: str) -> dict[str, Any] | None:
        """Where the coordinator of a data centre listens; None while it is closed."""
        events = [event for event in self.of_kind("prefill_coordinator") if event["dc"] == dc]
        return events[-1] if events and events[-1]["state"] == "open" else None

    def coordinator_states(self, dc: str) -> list[str]:
        """What the coordinator of a data centre was, one after the other: open, closed."""
        return [event["state"] for event in self.of_kind("prefill_coordinator") if event["dc"] == dc]

    def coordinator_process(self, dc: str) -> psutil.Process:
        """The process that listens there."""
        where = self.coordinator(dc)
        assert where is not None
        assert isinstance(self.group._host, PipedHost)
        for process in psutil.Process(self.group._host.process.pid).children():
            with suppress(psutil.NoSuchProcess):  # another that ends just now
                listening = [c.laddr.port for c in process.net_connections("tcp") if c.status == "LISTEN"]
                if where["port"] in listening:
                    return process
        raise AssertionError("nobody listens there")

    async def until(self, what: str, is_so: Callable[[], Any]) -> None:
        try:
            async with asyncio.timeout(LIMIT_S):
                while not is_so():
                    await asyncio.sleep(0.02)
        except TimeoutError:
            failed = [e["detail"] for e in self.of_kind("rank") if e["state"] == "failed"]
            raise AssertionError(f"{what} never came; {failed}") from None

    async def gateway(self, dc: str) -> "Gateway":
        where = self.coordinator(dc)
        assert where is not None
        me = Identity(rank=GATEWAY_RANK, run="live", generation=1, secret=self.spec.secret.encode())
        return Gateway(await call(where["host"], where["port"], me, where["rank"], FROM_COORDINATOR))


class Gateway:
    """Asks, and keeps the answers by request. It asks again, as clients do, where a refusal passes; and where
    training took the bubble of a request that was accepted, but for requests that may fail."""

    def __init__(self, line: AsyncChannel[Answer]) -> None:
        self._line = line
        self.answers: dict[str, list[Answer]] = {}
        self._asked: dict[str, PrefillRequest] = {}
        self._may_fail: set[str] = set()
        self.lost = asyncio.Event()
        self._reading = asyncio.create_task(self._read())

    async def ask(self, request: str, *, may_fail: bool = False, **what: Any) -> None:
        if may_fail:
            self._may_fail.add(request)
        self._asked[request] = PrefillRequest(request=request, **{"longest_prompt": 1000, **what})
        await self._line.send(self._asked[request])

    async def withdraw(self, request: str) -> None:
        await self._line.send(Withdraw(request=request))

    async def ended(self, request: str) -> list[Answer]:
        """All that was answered, once there is no more to come."""
        async with asyncio.timeout(LIMIT_S):
            while not any(a.kind in ("done", "refused", "failed") for a in self.answers.get(request, [])):
                await asyncio.sleep(0.01)
        return self.answers[request]

    async def tokens(self, request: str) -> list[int]:
        """The tokens of a request that went well."""
        messages = await self.ended(request)
        assert isinstance(messages[-1], Done), messages
        return [a.token for a in messages if isinstance(a, Token)]

    async def close(self) -> None:
        self._reading.cancel()
        await self._line.close()

    async def _read(self) -> None:
        try:
            async for answer in self._line.messages():
                if self._asks_again(answer):
                    self.answers.pop(answer.request, None)
                    await asyncio.sleep(0.1)
                    await self._line.send(self._asked[answer.request])
                else:
                    self.answers.setdefault(answer.request, []).append(answer)
        except ChannelLost:
            pass
        self.lost.set()

    def _asks_again(self, answer: Answer) -> bool:
        if isinstance(answer, Refused):
            return answer.reason in PASSING
        if isinstance(answer, Failed):
            return answer.reason == "training" and answer.request not in self._may_fail
        return False
