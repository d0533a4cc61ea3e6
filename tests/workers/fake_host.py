"""A stand-in for engine.run.host: counts, obeys `stop` and `size`, and ends when its input does."""

import json
import os
import select
import sys

spec = json.loads(sys.stdin.buffer.raw.readline())  # type: ignore[attr-defined]
text, every_s, begun, count = "", 0.005, b"", 0
while True:
    if select.select([0], [], [], every_s)[0]:
        data = os.read(0, 4096)
        if not data:
            sys.exit(3)
        *lines, begun = (begun + data).split(b"\n")
        for line in lines:
            name, _, rest = line.decode().partition(" ")
            if name == "stop":
                print(json.dumps({"kind": "rank", "spec": spec, "count": count}), flush=True)
                sys.exit(0)
            if name == "size":
                text, every_s = "x" * int(rest), 0.0
    print(json.dumps({"kind": "spans", "count": count, "text": text}), flush=True)
    count += 1
