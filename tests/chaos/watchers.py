"""Who uses the product while faults strike it, and remembers what it was promised."""

import json
import threading
import urllib.request
from http.client import HTTPException
from typing import Any

from tests.demo.harness import Client, Demo
from tests.demo_alone.own import operator_of, state_of

AWAY = (OSError, HTTPException, ValueError)  # what a site that is away answers with


class Watcher(threading.Thread):
    """Acts every `every_s` until it is told to end; an answer that fails is tried anew with a new login."""

    every_s = 1.0

    def __init__(self, demo: Demo, run: str) -> None:
        super().__init__(daemon=True)
        self.demo, self.run_id = demo, run
        self.over = threading.Event()

    def run(self) -> None:
        client: Client | None = None
        while not self.over.wait(self.every_s):
            try:
                client = client or operator_of(self.demo)
                self.act(client)
            except AWAY:
                client = None

    def act(self, client: Client) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self.over.set()
        self.join(90)


class Person(Watcher):
    """Writes a note on the run again and again; remembers which of them the site took."""

    every_s = 3.0

    def __init__(self, demo: Demo, run: str) -> None:
        super().__init__(demo, run)
        self.taken: list[str] = []
        self._number = 0

    def act(self, client: Client) -> None:
        self._number += 1
        note = f"note {self._number} of {self.run_id}"
        path = f"/runs/{self.run_id}/describe/"
        client.get(path)
        client.post(path, {"labels": "", "note": note})
        if client.last_url.endswith(f"/runs/{self.run_id}/"):
            self.taken.append(note)


class Observer(Watcher):
    """Looks whether the run goes on; remembers what it was told when it did not."""

    def __init__(self, demo: Demo, run: str) -> None:
        super().__init__(demo, run)
        self.ends: list[str] = []

    def act(self, client: Client) -> None:
        state = state_of(client, self.run_id)
        if state["finished_at"] and not self.ends:
            self.ends.append(f"{state['status']}: {state['reason']}")


class Buyer(Watcher):
    """Sends prompts to the API; remembers the prompt tokens of requests that were answered to the end."""

    every_s = 0.5

    def __init__(self, demo: Demo, run: str) -> None:
        super().__init__(demo, run)
        self.answered: dict[str, int] = {}  # request id → prompt tokens that the answer says

    def act(self, client: Client) -> None:
        del client  # a key is all that it needs
        key = (self.demo.var / "demo-key").read_text().strip()
        usage = {"include_usage": True}
        body = {"model": "llama-tiny", "prompt": "Once upon a time", "max_tokens": 12, "stream": True}
        request = urllib.request.Request(
            f"{self.demo.url}/v1/completions",
            json.dumps({**body, "stream_options": usage}).encode(),
            {"Authorization": f"Bearer {key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            chunks = [line[6:].strip() for line in answer if line.startswith(b"data: ")]
            if chunks and chunks[-1] == b"[DONE]":
                last: dict[str, Any] = json.loads(chunks[-2])
                self.answered[answer.headers["x-request-id"]] = last["usage"]["prompt_tokens"]
