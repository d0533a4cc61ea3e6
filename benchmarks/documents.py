"""Documents a second, and the slowest of those that were made to cost much: `python -m benchmarks.documents`.

The generated documents and the attacks of tests/security/test_documents.py. Each is read or refused.
"""

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from engine.documents import MOST_YAML_VALUES, read_document
from engine.errors import InputError
from tests.security.test_documents import ATTACKS, generated

# Read to their end: the most that the bounds allow.
LARGEST = {
    "names, as YAML": "\n".join(f"k{i}: {i}" for i in range(MOST_YAML_VALUES // 2 - 1)),
    "lists, as JSON": "[" + "[]," * 999_998 + "[]]",
    "commas in text, as JSON": '["' + "," * 30_000_000 + '"]',
}


def _timed(text: str) -> tuple[float, bool]:
    """Seconds, and whether it was taken."""
    began = time.perf_counter()
    try:
        read_document(text, "document")
    except InputError:
        return time.perf_counter() - began, False
    return time.perf_counter() - began, True


def main(count: int) -> None:
    """Print both tables."""
    outcomes: Counter[bool] = Counter()
    total = worst = 0.0
    for text in generated(25, count):
        took, taken = _timed(text)
        outcomes[taken] += 1
        total, worst = total + took, max(worst, took)
    print(f"load {os.getloadavg()[0]:.1f}")
    print(f"{count:,} generated documents: {count / total:,.0f} a second, slowest {worst * 1e3:.1f} ms")
    print(f"taken {outcomes[True]:,}, refused {outcomes[False]:,}\n")
    print(f"{'document':<48}{'bytes':>12}{'ms':>9}")
    for name, text in (ATTACKS | LARGEST).items():
        given = text if isinstance(text, str) else text[0]
        print(f"{name:<48}{len(given):>12,}{_timed(given)[0] * 1e3:>9.1f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=100_000)
    main(parser.parse_args().count)
