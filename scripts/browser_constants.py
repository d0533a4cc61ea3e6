#!/usr/bin/env python
"""Write static/js/lib/wire.js: the words and letters of the site's messages, for the browser.

They are written once, in Python: codes of spans in engine/job/codes.py, states of runs and levels of marks in
webapp/jobs/models.py, kinds of messages in webapp/live/payload.py. tests/house/test_wire.py compares
the file.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "static/js/lib/wire.js"
HEAD = """\
// Words and letters of the site's messages. Written by scripts/browser_constants.py; change them in Python.
"""


def text() -> str:
    """The module as it should be."""
    from engine.job.codes import LOADS, OPS, PAYLOADS, TRANSFER
    from webapp.jobs.models import TERMINAL, MarkLevel, Status
    from webapp.live.payload import MessageType

    return HEAD + "".join(
        [
            _group("Codes of ops; their order is that in which the timeline counts them.", "OP", OPS),
            "export const OPS = Object.values(OP);\n",
            _group(
                "Copies between host and GPU next to the ops: a sub-model in, its gradients out.",
                "LOAD",
                {"IN" if payload is None else "OUT": code for payload, code in LOADS.items()},
            ),
            f"export const TRANSFER = {json.dumps(TRANSFER)};\n",
            _group("What a transfer carries.", "PAYLOAD", PAYLOADS),
            _group("Where a run stands.", "STATUS", {s.name: s.value for s in Status}),
            f"export const OVER = {json.dumps(list(TERMINAL))};\n",
            _group("How much a mark matters.", "LEVEL", {s.name: s.value for s in MarkLevel}),
            _group("Kinds of messages.", "MESSAGE", {s.name: s.value for s in MessageType}),
        ]
    )


def _group(says: str, name: str, words: Mapping[str, str]) -> str:
    fields = ", ".join(f"{key.upper()}: {json.dumps(value)}" for key, value in words.items())
    return f"/** {says} */\nexport const {name} = {{ {fields} }};\n"


def main() -> int:
    """Write the file."""
    sys.path.insert(0, str(ROOT))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
    import django

    django.setup()
    FILE.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
