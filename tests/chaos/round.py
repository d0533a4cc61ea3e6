"""One demo under faults, and what must hold when they are over."""

import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg

from tests.chaos.faults import FAULTS
from tests.chaos.watchers import AWAY, Buyer, Observer, Person
from tests.demo.harness import ROOT, Demo
from tests.demo_alone.own import (
    RANKS,
    ended,
    first_run,
    gpus_held,
    incomplete,
    left_of,
    operator_of,
    progress,
    query,
    rank_processes,
    recovering,
)

CALM_S = 240.0  # for all to be well again after the last fault


class Round:
    """A demo, what befalls it, and the invariants that were broken.

    recovers : its run recovers, and ranks, hosts and shims are killed too; otherwise it sells its bubbles.
    """

    def __init__(self, demo: Demo, draw: random.Random, *, recovers: bool) -> None:
        self.demo, self.draw, self.recovers = demo, draw, recovers
        self.broken: list[str] = []
        self.emptied: list[float] = []  # when the broker was emptied
        self.losses: dict[int, float] = {}  # by iteration, as the site has them
        self.document: dict[str, Any] = {}  # of the job

    def play(self, faults: int, gap_s: float) -> None:
        """Start the demo, let so many faults strike it, `gap_s` apart on average, and check everything."""
        demo = self.demo.start()
        client = operator_of(demo)
        run = first_run(demo, client)
        if self.recovers:
            run = recovering(client, run, attempts=1000, wait_s=900)
            first_run(demo, client)
        runs = len(query(demo, "select id from jobs_run"))
        observer, person = Observer(demo, run), Person(demo, run)
        buyer = None if self.recovers else Buyer(demo, run)
        watchers = [observer, person, *([buyer] if buyer else [])]
        for watcher in watchers:
            watcher.start()
        self._strike(faults, gap_s)
        self._calm(run)
        for watcher in watchers:
            watcher.end()
        self.broken += [f"the run ended: {end}" for end in observer.ends]
        self._check_runs(run, runs)
        self._check_audit(person)
        if buyer:
            self._check_charges(buyer)
        self._keep_losses(run)
        self._end(run)

    def _strike(self, faults: int, gap_s: float) -> None:
        kinds = [fault for fault in FAULTS if self.recovers or not fault.needs_recovery]
        lasting: list[threading.Thread] = []
        for number in range(1, faults + 1):
            time.sleep(self.draw.expovariate(1.0 / gap_s))
            fault, own = self.draw.choice(kinds), random.Random(self.draw.random())

            def strike(number: int = number, fault: Any = fault, own: random.Random = own) -> None:
                log(f"{number:3d} {fault(self.demo, own)}")

            if fault.empties:
                self.emptied.append(time.time())
            if fault.longest_s:
                lasting.append(threading.Thread(target=strike, daemon=True))
                lasting[-1].start()
            else:
                strike()  # on this thread: what it starts dies with the thread that started it
        for thread in lasting:
            thread.join(CALM_S)

    def _calm(self, run: str) -> None:
        """Wait until all is well again, or keep what is not."""
        demo = self.demo
        self._hold("the site answers", lambda: operator_of(demo).json("/readyz")["ok"])
        before = progress(operator_of(demo), run)
        self._hold("the run trains on", lambda: progress(operator_of(demo), run) >= before + 10)
        self._hold("no node is silent", lambda: 'data-state="silent"' not in operator_of(demo).get("/nodes/"))
        self._hold("every iteration is there once", lambda: not incomplete(demo, run, emptied=self.emptied))
        self._hold("a process for each rank", lambda: len(rank_processes(demo)) == gpus_held(demo) == RANKS)

    def _check_runs(self, run: str, runs: int) -> None:
        now = len(query(self.demo, "select id from jobs_run"))
        if now != runs:
            self.broken.append(f"{now} runs in place of {runs}")
        log(f"iteration {progress(operator_of(self.demo), run)} of run {run}")

    def _check_audit(self, person: Person) -> None:
        sql = "select after->>'note' from accounts_auditentry where object_type = 'run' and object_id = %s"
        audited = Counter(note for (note,) in query(self.demo, sql, person.run_id) if note)
        wrong = [note for note in person.taken if audited[note] != 1]
        self.broken += [f"{note!r} has {audited[note]} audit rows" for note in wrong]
        log(f"{len(person.taken)} notes taken")

    def _check_charges(self, buyer: Buyer) -> None:
        demo = self.demo
        self._hold("no request stays open", lambda: not query(demo, "select 1 from prefill_openrequest"))
        rows = query(demo, "select request_id, outcome, prompt_tokens from prefill_usageevent")
        charged = {request: tokens for request, outcome, tokens in rows if outcome == "delivered"}
        for request, tokens in buyer.answered.items():
            if charged.get(request) != tokens:
                self.broken.append(f"{request}: {tokens} tokens answered, {charged.get(request)} charged")
        log(f"{len(buyer.answered)} requests answered, {len(rows)} accounted for")

    def _keep_losses(self, run: str) -> None:
        sql = "select iteration, loss from live_iterationstat where run_id = %s and loss is not null"
        self.losses = dict(query(self.demo, sql, int(run)))
        sql = (
            "select job.document from jobs_run run join jobs_job job on job.id = run.job_id where run.id = %s"
        )
        self.document = query(self.demo, sql, int(run))[0][0]

    def _end(self, run: str) -> None:
        client = operator_of(self.demo)
        client.post(f"/runs/{run}/cancel/")
        status = ended(client, run, 120)["status"]
        if status != "cancelled":
            self.broken.append(f"a stop ended the run as {status}")
        self.demo.interrupt(60)
        self._hold("no process is left", lambda: not left_of(self.demo))

    def _hold(self, what: str, met: Callable[[], Any]) -> None:
        deadline = time.monotonic() + CALM_S
        while time.monotonic() < deadline:
            try:
                if met():
                    return
            except (*AWAY, KeyError, psycopg.Error):
                pass
            time.sleep(1.0)
        self.broken.append(f"not within {CALM_S:.0f} s: {what}")
        self._keep_logs()

    def _keep_logs(self) -> None:
        """What the parts of the demo printed and logged outlives its folder."""
        folder = ROOT / "var" / "chaos" / f"{time.strftime('%H%M%S')}-{self.demo.port}"
        shutil.copytree(self.demo.var / "log", folder, dirs_exist_ok=True)
        (folder / "supervisor.txt").write_text("\n".join(self.demo.history))
        log(f"its logs: {folder}")


def log(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)
