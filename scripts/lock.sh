#!/usr/bin/env bash
# Writes requirements.lock from .venv. torch is pinned without the +cpu that pip freeze writes.
set -euo pipefail
cd "$(dirname "$0")/.."
{
    echo "# Exact versions of everything that \`make setup\` installs. After a change in pyproject.toml: make lock."
    .venv/bin/python -m pip freeze --exclude-editable | sed 's/^torch==\(.*\)+.*/torch==\1/'
} > requirements.lock.new
mv requirements.lock.new requirements.lock
