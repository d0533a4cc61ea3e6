"""`make chaos`: random, overlapping faults while the whole product trains and sells; then all must be well.

    python -m tests.chaos [--seed N] [--faults N] [--minutes M]

Half of the faults strike a run that sells its bubbles and whose ranks nobody kills, half one that recovers
and whose ranks, hosts and shims are killed too. The seed decides which faults strike when, and for how long.
Which rank is killed is chance. Exit status 1 where an invariant is broken, each with a line.
"""

import argparse
import json
import random
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from http.client import HTTPException
from typing import Any

from tests.chaos.faults import FAULTS
from tests.demo.harness import Client, Demo
from tests.demo_alone.own import (
    RANKS,
    demo_of_its_own,
    ended,
    first_run,
    gpus_held,
    incomplete,
    left_of,
    operator_of,
    progress,
    query,
    rank_processes,
    state_of,
)
from tests.demo_alone.test_recovery import recovering

CALM_S = 240.0  # for all to be well again after the last fault
AWAY = (OSError, HTTPException, ValueError)  # what a site that is away answers with


class Person(threading.Thread):
    """Writes a note on the run again and again; remembers which of them the site took."""

    def __init__(self, demo: Demo, run: str) -> None:
        super().__init__(daemon=True)
        self.demo, self.run_id = demo, run
        self.taken: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        client: Client | None = None
        number = 0
        while not self.over.wait(3.0):
            number += 1
            note = f"note {number} of {self.run_id}"
            try:
                client = client or operator_of(self.demo)
                path = f"/runs/{self.run_id}/describe/"
                client.get(path)
                client.post(path, {"labels": "", "note": note})
            except AWAY:
                client = None
                continue
            if client.last_url.endswith(f"/runs/{self.run_id}/"):
                self.taken.append(note)


class Buyer(threading.Thread):
    """Sends prompts to the API, and remembers which requests were answered to the end."""

    def __init__(self, demo: Demo) -> None:
        super().__init__(daemon=True)
        self.demo = demo
        self.answered: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        key = (self.demo.var / "demo-key").read_text().strip()
        body = {"model": "llama-tiny", "prompt": "Once upon a time", "max_tokens": 12, "stream": True}
        while not self.over.wait(0.5):
            request = urllib.request.Request(
                f"{self.demo.url}/v1/completions",
                json.dumps(body).encode(),
                {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
            )
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    if answer.read().rstrip().endswith(b"[DONE]"):
                        self.answered.append(answer.headers["x-request-id"])
            except AWAY:
                continue


class Watch(threading.Thread):
    """Looks whether the run goes on; remembers what it was told when it did not."""

    def __init__(self, demo: Demo, run: str) -> None:
        super().__init__(daemon=True)
        self.demo, self.run_id = demo, run
        self.ends: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        client: Client | None = None
        while not self.over.wait(1.0):
            try:
                client = client or operator_of(self.demo)
                state = state_of(client, self.run_id)
            except AWAY:
                client = None
                continue
            if state["finished_at"] and not self.ends:
                self.ends.append(f"{state['status']}: {state['reason']}")


class Round:
    """One demo under faults, and what must hold when they are over."""

    def __init__(self, demo: Demo, draw: random.Random, *, recovers: bool) -> None:
        self.demo, self.draw, self.recovers = demo, draw, recovers
        self.broken: list[str] = []

    def play(self, faults: int, gap_s: float) -> list[str]:
        """Returns the invariants that were broken."""
        demo = self.demo.start()
        client = operator_of(demo)
        run = first_run(demo, client)
        if self.recovers:
            run = recovering(client, run, attempts=1000)
            first_run(demo, client)
        runs = len(query(demo, "select id from jobs_run"))
        watch, person = Watch(demo, run), Person(demo, run)
        helpers: list[Any] = [watch, person]
        buyer = None if self.recovers else Buyer(demo)
        helpers += [buyer] if buyer else []
        for helper in helpers:
            helper.start()
        self._strike(faults, gap_s)
        self._calm(run)
        for helper in helpers:
            helper.over.set()
            helper.join(90)
        self.broken += [f"the run ended: {end}" for end in watch.ends]
        self._check_rows(run, runs, person, buyer)
        say(f"iteration {progress(operator_of(demo), run)}, {len(person.taken)} notes")
        self._end(run)
        return self.broken

    def _strike(self, faults: int, gap_s: float) -> None:
        kinds = [fault for fault in FAULTS if self.recovers or not fault.needs_recovery]
        lasting: list[threading.Thread] = []
        for number in range(faults):
            time.sleep(self.draw.expovariate(1.0 / gap_s))
            fault, own = self.draw.choice(kinds), random.Random(self.draw.random())

            def strike(number: int = number, fault: Any = fault, own: random.Random = own) -> None:
                say(f"{number + 1:3d} {fault(self.demo, own)}")

            if fault.longest_s:
                lasting.append(threading.Thread(target=strike, daemon=True))
                lasting[-1].start()
            else:
                strike()  # on this thread: what it starts dies with the thread that started it
        for thread in lasting:
            thread.join(CALM_S)

    def _calm(self, run: str) -> None:
        """Wait until all is well again, or say what is not."""
        demo = self.demo
        self._hold("the site answers", lambda: operator_of(demo).json("/readyz")["ok"])
        before = progress(operator_of(demo), run)
        self._hold("the run trains on", lambda: progress(operator_of(demo), run) >= before + 10)
        self._hold("no node is silent", lambda: 'data-state="silent"' not in operator_of(demo).get("/nodes/"))
        self._hold("every iteration is there once", lambda: not incomplete(demo, run))
        self._hold("a process for each rank", lambda: len(rank_processes(demo)) == gpus_held(demo) == RANKS)

    def _check_rows(self, run: str, runs: int, person: Person, buyer: Buyer | None) -> None:
        demo = self.demo
        now = len(query(demo, "select id from jobs_run"))
        if now != runs:
            self.broken.append(f"{now} runs in place of {runs}")
        sql = "select after->>'note' from accounts_auditentry where object_type = 'run' and object_id = %s"
        audited = Counter(note for (note,) in query(demo, sql, run) if note)
        wrong = [note for note in person.taken if audited[note] != 1]
        self.broken += [f"{note!r} has {audited[note]} audit rows" for note in wrong]
        if buyer is None:
            return
        self._hold("no request stays open", lambda: not query(demo, "select 1 from prefill_openrequest"))
        charged = dict(query(demo, "select request_id, outcome from prefill_usageevent"))
        for request in buyer.answered:
            if charged.get(request) != "delivered":
                self.broken.append(f"answered request {request} is {charged.get(request, 'not')} charged")
        say(f"{len(buyer.answered)} requests answered, {len(charged)} accounted for")

    def _end(self, run: str) -> None:
        client = operator_of(self.demo)
        client.post(f"/runs/{run}/cancel/")
        status = ended(client, run, 120)["status"]
        if status != "cancelled":
            self.broken.append(f"a stop ended the run as {status}")
        self.demo.interrupt(60)
        self._hold("nothing is left", lambda: not left_of(self.demo))

    def _hold(self, what: str, met: Callable[[], Any]) -> None:
        deadline = time.monotonic() + CALM_S
        while time.monotonic() < deadline:
            try:
                if met():
                    return
            except AWAY:
                pass
            time.sleep(1.0)
        self.broken.append(f"not within {CALM_S:.0f} s: {what}")


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def main() -> int:
    """Entry point of ``python -m tests.chaos``."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--seed", type=int, default=1, help="decides the faults and their times (1)")
    parser.add_argument("--faults", type=int, default=200, help="in all (200)")
    parser.add_argument("--minutes", type=float, default=45.0, help="over which they are spread (45)")
    asked = parser.parse_args()
    draw = random.Random(asked.seed)
    broken: list[str] = []
    for recovers in (False, True):
        say(f"seed {asked.seed}: {'a run that recovers' if recovers else 'a run that sells its bubbles'}")
        count = asked.faults // 2 + (asked.faults % 2 if recovers else 0)
        gap_s = asked.minutes * 60 / max(1, asked.faults)
        with demo_of_its_own(sells=not recovers) as demo:
            found = Round(demo, draw, recovers=recovers).play(count, gap_s)
        for line in found:
            say(f"BROKEN: {line}")
        broken += found
    say(f"{asked.faults} faults, {len(broken)} invariants broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
