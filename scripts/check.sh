#!/usr/bin/env bash
# Everything that a machine can say about the code without running it. All parts run; any failure fails.
set -uo pipefail
cd "$(dirname "$0")/.."
bin=.venv/bin
names=() pids=()
outputs=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null; rm -rf "$outputs"' EXIT
# All run at once: mypy takes longer than all others together, and has one core.
step() {
    local name=$1
    shift
    "$@" >"$outputs/${#names[@]}" 2>&1 &
    pids+=($!)
    names+=("$name")
}

step "ruff check" $bin/ruff check .
step "ruff format" $bin/ruff format --check .
# One format for all: a statement that is kept as it was typed is edited by hand for ever.
step "no statement kept from the formatter" bash -c '! git grep -nE "fmt: (skip|off)" -- "*.py"'
step "import rules" $bin/lint-imports
# Neither reads the database: any well-formed URLs do, and the production check wants production's settings.
export DATABASE_URL=postgres://nobody@127.0.0.1:1/none VALKEY_URL=redis://127.0.0.1:1/0
step "migrations" $bin/python manage.py makemigrations --check --dry-run
step "check --deploy" env MERIDIAN_ENV=production \
    MERIDIAN_SECRET_KEY="$($bin/python -c 'import secrets; print(secrets.token_urlsafe(50))')" \
    MERIDIAN_HOSTS=meridian.example.org $bin/python manage.py check --deploy --fail-level WARNING
step "mypy" $bin/mypy

failed=()
for i in "${!names[@]}"; do
    if wait "${pids[$i]}"; then
        echo "ok    ${names[$i]}"
    else
        echo "FAIL  ${names[$i]}"
        cat "$outputs/$i"
        failed+=("${names[$i]}")
    fi
done
if [ ${#failed[@]} -gt 0 ]; then
    echo "make check failed: ${failed[*]}" >&2
    exit 1
fi
