#!/usr/bin/env bash
# Builds the documentation site into var/docs. The generator has a venv of its own, .venv-docs, so that the
# tests do not carry it.
set -euo pipefail
cd "$(dirname "$0")/.."

usable() { command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

python=
for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
    if usable "$candidate"; then python=$candidate; break; fi
done
if [ -z "$python" ]; then
    echo "make docs needs Python 3.11 or newer, and none was found (set PYTHON=/path/to/python3 if you have one)." >&2
    exit 1
fi
stamp=.venv-docs/.set-up
# The versions are those of the extra `docs` of pyproject.toml.
wanted=$("$python" -c 'import tomllib; print("\n".join(tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]["docs"]))')
if [ ! -f "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
    echo "Setting up .venv-docs with the generator of the documentation."
    "$python" -m venv --clear .venv-docs
    export PIP_DISABLE_PIP_VERSION_CHECK=1
    printf '%s\n' "$wanted" | .venv-docs/bin/python -m pip install --quiet --progress-bar off -r /dev/stdin
    printf '%s' "$wanted" > "$stamp"
fi

"$python" -m scripts.check_docs
.venv-docs/bin/zensical build --clean --strict
"$python" -m scripts.check_docs --site var/docs
echo "The documentation is in var/docs. Open var/docs/index.html, or, to search in it too:"
echo "  python3 -m http.server --directory var/docs --bind 127.0.0.1 8008"
