# `make demo` and `make test` are the two commands; both do all the set-up that they need.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PORT ?= 8000
PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.set-up

.PHONY: help setup demo up test short-tests test-long check format docs gpu bench chaos lock clean

help:  ## this list
	@awk -F':.*## *' '/^[a-z-]+:.*##/ {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv with everything in it (about 2.2 GB)

$(STAMP): requirements.lock pyproject.toml scripts/setup.sh
	@scripts/setup.sh
	@touch $@

demo: $(STAMP)  ## three emulated DCs and a job that trains, in the browser, and sells its bubbles (PORT=8000; SELL=0: it only trains)
	@exec $(BIN)/python -m webapp.supervisor --demo $(if $(filter 0,$(SELL)),--no-sell) --port $(PORT)

up: $(STAMP)  ## the site and its workers without the demo's data (PORT=8000)
	@exec $(BIN)/python -m webapp.supervisor --port $(PORT)

test: $(STAMP)  ## linters and every test of seconds (about 9 minutes on 2 cores; FILES="tests/engine/test_inputs.py": these alone, no linters)
	@$(MAKE) --no-print-directory -j 2 $(if $(FILES),,check) short-tests

short-tests: $(STAMP)
	@scripts/chromium.sh
	$(BIN)/python -m pytest -m "not long" -n 3 $(FILES)

test-long: $(STAMP)  ## kills, leaks, fuzz and the long demo (about half an hour on 2 cores)
	@scripts/chromium.sh
	$(BIN)/python -m pytest -m long -n 3

check: $(STAMP)  ## linters, types, import rules, migrations, production settings
	@scripts/check.sh

format: $(STAMP)  ## ruff: format and mend
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs:  ## build the documentation site into var/docs, and check its links (no network is needed to read it)
	@PYTHON="$(PYTHON)" scripts/docs.sh

gpu:  ## measure on this machine's GPU what docs/gpu.md has figures of (under 9 minutes; PYTHON=python3 WHEELS=folder)
	@$(PYTHON) -m benchmarks.gpu $(if $(WHEELS),--wheels $(WHEELS))

SEEDS ?= 1
FAULTS ?= 200
MINUTES ?= 40
chaos: $(STAMP)  ## 200 random faults under training and sales, in an hour; SEEDS="1 2 3", FAULTS=, MINUTES=
	$(BIN)/python -m tests.chaos --seeds $(SEEDS) --faults $(FAULTS) --minutes $(MINUTES)

bench: $(STAMP)  ## every benchmark, each printing its table
	@for file in benchmarks/[a-z]*.py; do echo "== $$file"; $(BIN)/python $$file || exit 1; done

lock: $(STAMP)  ## write requirements.lock, docker/*.lock: what .venv holds, with hashes from the package index
	@$(BIN)/python -m scripts.lock

clean:  ## remove what can be made again (not var/, which holds your data)
	rm -rf .venv .venv-docs .mypy_cache .ruff_cache .pytest_cache .hypothesis build *.egg-info
