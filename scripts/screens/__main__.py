"""Take pictures of every page of the site into var/screens.

    python -m scripts.screens [--states empty,demo,full,cases] [--only TEXT] [--resume MINUTES] [--out DIR]
    python -m scripts.screens --serve full --port 8406      # the same site to look at by hand, until Ctrl-C

Writes WebP files and an index of them, README.md in the same folder. A page that fails does not keep
the others from being taken. Exit status 1 where a page failed, its console complained or it scrolls sideways.
"""

import argparse
import signal
import sys
import time
from pathlib import Path

from scripts.screens import cases
from scripts.screens.camera import SETTLE_MS, Camera, Shot
from scripts.screens.index import is_elsewhere, tidy, write_index
from scripts.screens.sites import ROOT, STATES, rows, site
from tests.demo.browser import PASSWORD, chromium, launched
from tests.demo.harness import free_port


def wanted_shots(state: str) -> list[Shot]:
    """Every page of the site that os.environ points at; of `cases` its situations."""
    if state == "cases":
        return cases.shots(rows("paths"))
    pages = {name: path for name, path in rows("pages").items() if not is_elsewhere(name, state)}
    shots = [
        Shot(
            name=name, path=path, who=None if name == "login" else "admin", settle_ms=SETTLE_MS.get(name, 150)
        )
        for name, path in pages.items()
    ]
    return shots + (cases.of_demo() if state == "demo" else [])


def is_fresh(shot: Shot, folder: Path, minutes: float) -> bool:
    """Whether all its pictures were taken within the last `minutes`."""
    oldest = time.time() - 60 * minutes
    return all((folder / file).exists() and (folder / file).stat().st_mtime > oldest for file in shot.files)


def take(state: str, options: argparse.Namespace, path: str, port: int) -> list[str]:
    """All pictures of one site that are wanted; returns what was wrong with its pages."""
    folder = options.out / state
    with site(state, port) as url, launched(path) as browser:
        shots = wanted_shots(state)
        if not options.only:
            tidy(options.out, state, {file for shot in shots for file in shot.files})
        left = [s for s in shots if options.only in s.name and not is_fresh(s, folder, options.resume)]
        camera = Camera(browser=browser, url=url, out=folder, targets=options.targets)
        camera.take(left)
    return [f"{state}: {line}" for line in camera.wrong]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--states", default=",".join(STATES))
    parser.add_argument("--only", default="", help="only pages whose name contains this")
    parser.add_argument(
        "--resume", type=float, default=0, metavar="MINUTES", help="keep pictures younger than that"
    )
    parser.add_argument(
        "--targets", action="store_true", help="also tell of small touch targets and of text cut off"
    )
    parser.add_argument("--out", type=Path, default=ROOT / "var/screens")
    parser.add_argument("--serve", choices=STATES)
    parser.add_argument("--port", type=int, default=0)
    return parser


def main() -> int:
    parser = arguments()
    options = parser.parse_args()
    port, path = options.port or free_port(), chromium()
    if options.serve:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # the site's processes end with this one
        with site(options.serve, port) as url:
            sys.stderr.write(f"{url}  admin / {PASSWORD}\n")
            time.sleep(1e6)
    if path is None:
        parser.error("no Chromium found (install one, or set CHROMIUM to its path)")
    wrong: list[str] = []
    for state in options.states.split(","):
        try:
            wrong += take(state, options, path, port)
        except Exception as error:  # a site that does not start must not lose the others
            wrong.append(f"{state}: {type(error).__name__}: {error}")
        write_index(options.out)
    sys.stderr.writelines(f"{line}\n" for line in wrong)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
