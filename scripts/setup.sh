#!/usr/bin/env bash
# Makes .venv from requirements.lock; pip checks its hashes. Says what to install where Python or its venv module
# is missing.
set -euo pipefail
cd "$(dirname "$0")/.."

usable() { command -v "$1" >/dev/null 2>&1 && "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
        if usable "$candidate"; then echo "$candidate"; return; fi
    done
}

python=$(find_python)
if [ -z "$python" ]; then
    echo "Meridian needs Python 3.11 or newer, and none was found (set PYTHON=/path/to/python3 if you have one)." >&2
    echo "  Debian, Ubuntu:  sudo apt install python3 python3-venv" >&2
    echo "  macOS:           brew install python@3.12" >&2
    exit 1
fi
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    echo "$python has no venv module. Install it, then run make again:" >&2
    echo "  Debian, Ubuntu:  sudo apt install python${version}-venv" >&2
    exit 1
fi

free_gb=$(df -Pk . | awk 'NR == 2 {print int($4 / 1048576)}')
echo "Setting up .venv with $("$python" --version): about 2.2 GB on disk, a few minutes."
if [ "$free_gb" -lt 4 ]; then
    echo "Only ${free_gb} GB are free here; 4 GB are needed while it installs." >&2
    exit 1
fi

# Without pip it was interrupted while it was made.
.venv/bin/python -m pip --version >/dev/null 2>&1 || "$python" -m venv --clear .venv
export PIP_DISABLE_PIP_VERSION_CHECK=1
# pip uses one core, so two run at once, each on a quarter of the lock and then on the next. No package asks for
# others: the lock has them all.
quarters=$(mktemp -d)
trap 'rm -rf "$quarters"' EXIT
awk -v folder="$quarters" '/^[A-Za-z0-9]/ {n++} {print > (folder "/" n % 4)}' requirements.lock
printf '%s\n' "$quarters"/* | xargs -P 2 -n 1 \
    .venv/bin/python -m pip install --quiet --progress-bar off --no-compile --no-deps --require-hashes -r
# All that is missing is torch: pip takes the build that its index serves, for CPUs or for CUDA.
.venv/bin/python -m pip install --quiet --progress-bar off --no-compile --no-build-isolation --editable ".[dev]"
# pip would write bytecode alone on one core; so it is written beside the kernels. Some ship files for other Pythons.
# These are nearly half of all sources, and few of them are ever imported; Python compiles those when they are.
seldom='tests?|transformers/models|plotly/graph_objs|torch/(_inductor|testing)|pandas|pip|mypyc?|networkx'
seldom+='|fontTools|narwhals|setuptools|scipy/(stats|signal|integrate)|sympy/physics'
.venv/bin/python -m compileall -q -x "/($seldom)/" .venv/lib >/dev/null &
# numba keeps what it compiles beside the sources; without this the first plan of a newcomer would wait for it.
echo "Compiling the schedule and simulation kernels (once, about a minute)."
.venv/bin/python scripts/compile_kernels.py
wait $! || true
echo "Set-up is complete."
