"""Processes prove in one way that they know a secret: by the handshake of a control channel."""

import re

from tests.house.imports import sources

PROOF = re.compile(r"\b(hmac|compare_digest)\b")


def test_only_the_handshake_proves_a_secret() -> None:
    proofs = {name for name, path in sources().items() if PROOF.search(path.read_text(encoding="utf-8"))}
    assert proofs == {"engine.control.handshake"}
