"""Frame times of the canvas timeline with 960 GPUs, in headless Chromium: prints one JSON object.

The aim is a frame under 8 ms (design/look), painted in software. On a machine that does other things too,
look at `cpu_ms` (CPU time of the page's process per frame) and `least_ms`.
Usage: python benchmarks/timeline.py [chromium]
"""

import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parent.parent


class Quiet(SimpleHTTPRequestHandler):
    """Serves the repository and says nothing."""

    def log_message(self, format: str, *args: object) -> None: ...


def renderer_cpu_ms() -> float:
    """CPU time so far of all pages' processes below this one."""
    below = psutil.Process().children(recursive=True)
    pages = [process for process in below if "--type=renderer" in process.cmdline()]
    return 1e3 * sum(times.user + times.system for times in (page.cpu_times() for page in pages))


def measure(chromium: str) -> str:
    """The text that the benchmark page ends with."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(ROOT)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
            )
            page = browser.new_page(viewport={"width": 1440, "height": 1000})
            page.expose_function("cpuMs", renderer_cpu_ms)
            page.goto(f"http://127.0.0.1:{server.server_port}/benchmarks/timeline.html")
            page.wait_for_function(
                "document.querySelector('#result').textContent.startsWith('{')", timeout=120_000
            )
            return str(page.text_content("#result"))
    finally:
        server.shutdown()


if __name__ == "__main__":
    print(measure(sys.argv[1] if len(sys.argv) > 1 else "/usr/bin/chromium"))
