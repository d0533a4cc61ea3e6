"""State changes in services alone; migrations are complete; production settings pass Django's own check."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from django.core.management import call_command

ROOT = Path(__file__).resolve().parents[2]
WRITES = re.compile(r"\.(update|update_or_create|get_or_create|bulk_create|bulk_update|create|save|delete)\(")
# allocate: services of one subject; liveness: ingest's own beat; self.create: the audit's rows, which
# services write with `record`
SERVICES = {"services.py", "allocate.py", "liveness.py"}
HARMLESS = re.compile(
    r"services\.(save|delete)\(|inventory\.save\(|completions\.create\(|self\.create\(|model_copy|asyncio|hashlib|structlog|app\.conf\.update|cache\.delete\(|client\(\)\.delete\("
)


def test_nothing_writes_outside_services() -> None:
    lines = []
    for path in sorted((ROOT / "webapp").rglob("*.py")):
        folder = path.relative_to(ROOT / "webapp").parts[0]
        if folder in {"servers", "supervisor"} or "migrations" in path.parts or path.name in SERVICES:
            continue
        if path.parent.name == "services" or path.name == "dispatch.py":
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if WRITES.search(line) and not HARMLESS.search(line) and "def " not in line:
                lines.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()}")
    assert lines == []


def test_no_migration_is_missing(db: Any) -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


def test_production_settings_pass_the_deployment_check() -> None:
    environment = {
        **os.environ,
        "MERIDIAN_ENV": "production",
        "MERIDIAN_SECRET_KEY": "k9#" + "aZ3-" * 20,
        "MERIDIAN_HOSTS": "meridian.example",
    }
    command = [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    del environment["MERIDIAN_SECRET_KEY"]
    refused = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
    assert refused.returncode != 0
    assert "MERIDIAN_SECRET_KEY is not set" in refused.stderr
