"""A worker's connection to the tracker: its messages, and an inbox for the tracker's."""

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.control.errors import PeerLost
from engine.control.identity import identity_of
from engine.control.messages import Beat
from engine.control.thread_driver import BlockingChannel, call, call_when_there
from engine.inputs import Document
from engine.job.launch import LaunchSpec
from engine.train.swap.messages import (
    FROM_TRACKER,
    LISTENERS,
    Abandon,
    Bye,
    End,
    FromTracker,
    Hello,
    Leave,
    Seek,
    TrackerAddress,
    Welcome,
)

CONNECT_S = 120.0
BEAT_S = 1.0
SEEK_S = 30.0  # for a lost tracker's successor to be there; replicas give up before
ANSWER_S = 3.0  # of one replica
TRACKER_SILENT_S = 8.0  # a tracker beats every second; its successor is elected after 6 s at most
PAUSE_S = 0.1  # between two rounds of asking all


@dataclass(frozen=True, slots=True)
class Returned:
    """There is a new tracker, which is to hear a hello."""


class Client:
    """Connected to the tracker as `rank`; `die` is called in the background when it is gone for good.

    Where replicas keep the tracker, the next one is looked for. What is sent meanwhile is dropped: the hello
    to the new one says everything.

    Attributes
    ----------
    inbox : what the tracker says, in order; a worker may put messages of its own threads there too. The last
        is a Bye, also where a worker that was let go finds no tracker any more.

    Raises
    ------
    PeerLost
        There is no tracker, or it refuses this worker.
    """

    def __init__(
        self, spec: LaunchSpec, rank: int, port: int, hello: Hello, die: Callable[[BaseException], None]
    ) -> None:
        self.inbox: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._spec, self._rank, self._die = spec, rank, die
        self._let_go = False  # told to leave or to end: the tracker may be gone before this process
        self._away = False  # no tracker has heard a hello
        self._trackers: tuple[TrackerAddress, ...] = ()
        self._where = f"{spec.rendezvous_host}:{port}"
        try:
            me, address = identity_of(spec, rank, LISTENERS), (spec.rendezvous_host, port)
            self._channel = call_when_there(address, me, spec.first_rank, FROM_TRACKER, seconds=CONNECT_S)
        except OSError as error:
            raise PeerLost(f"no tracker at {self._where}: {error}") from None
        self.send(hello)
        for name, work in (("tracker", self._listen), ("beat", self._beat)):
            threading.Thread(target=work, name=name, daemon=True).start()

    def send(self, message: Document) -> None:
        """Tell the tracker. Raises PeerLost where it is gone for good."""
        channel = self._channel
        if self._away:
            return
        try:
            channel.send(message)
        except OSError as error:
            if len(self._trackers) < 2:
                raise PeerLost(f"lost the tracker at {self._where}: {error}") from None

    def greet(self, hello: Hello) -> None:
        """Say hello to a new tracker."""
        self._away = False
        self.send(hello)

    def _connected(self, tracker: TrackerAddress, seconds: float) -> BlockingChannel[FromTracker]:
        me = identity_of(self._spec, self._rank, LISTENERS)
        return call(tracker.address, me, tracker.rank, FROM_TRACKER, seconds=seconds)

    def _listen(self) -> None:
        messages: Iterator[FromTracker] | None = self._channel.messages()
        while messages is not None:
            why: object = "it closed the connection"
            try:
                for message in messages:
                    self._take(message)
            except OSError as error:
                why = error
            messages = self._another() if len(self._trackers) > 1 else None
        if self._let_go:
            self.inbox.put(Bye())
        else:
            self._die(PeerLost(f"lost the tracker at {self._where}: {why}"))

    def _take(self, message: FromTracker) -> None:
        match message:
            case Welcome():
                self._trackers = message.trackers or self._trackers
                if len(self._trackers) > 1:
                    self._channel.expect_within(TRACKER_SILENT_S)
            case Abandon() if self._let_go:
                self.inbox.put(Bye())
            case Abandon():
                self._die(PeerLost(message.why))
            case _:
                self._let_go = self._let_go or isinstance(message, Leave | End)
                self.inbox.put(message)

    def _another(self) -> Iterator[FromTracker] | None:
        """The messages of the next tracker, or None where there is none."""
        self._away = True
        self._channel.end()
        deadline = time.monotonic() + SEEK_S
        while time.monotonic() < deadline:
            for tracker in self._trackers:
                with contextlib.suppress(OSError, StopIteration):
                    return self._of(tracker)
            time.sleep(PAUSE_S)
        self._where = ", ".join(f"{host}:{port}" for host, port in (t.address for t in self._trackers))
        return None

    def _of(self, tracker: TrackerAddress) -> Iterator[FromTracker]:
        """The messages of the tracker, if it is there. Raises OSError, StopIteration."""
        channel = self._connected(tracker, ANSWER_S)
        try:
            channel.send(Seek())
            messages = channel.messages()
            channel.expect_within(ANSWER_S)
            self._take(next(messages))
        except (OSError, StopIteration):
            channel.end()
            raise
        channel.expect_within(TRACKER_SILENT_S)
        self._channel = channel
        self._where = f"{tracker.address[0]}:{tracker.address[1]}"
        self.inbox.put(Returned())
        return messages

    def _beat(self) -> None:
        while True:
            time.sleep(BEAT_S)
            with contextlib.suppress(OSError):  # the listener says so
                self._channel.send(Beat())
