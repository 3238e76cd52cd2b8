# Autotomy: `make demo` shows it, `make test` proves it. Needs Python 3.11+, make and the package registry; nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help setup demo test test-installations test-parts check histories soak format clean
.DEFAULT_GOAL := help

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

$(STAMP): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "autotomy needs Python 3.11 or newer, this is " + sys.version.split()[0] + "; try make PYTHON=python3.11")'
	@echo "installing into $(VENV) (once; about a minute)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --requirement requirements.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

setup: $(STAMP)  ## install into .venv, with .venv/bin/autotomy

demo: setup  ## the main job, live: one rank dies, the survivors keep serving (60 s at most)
	@$(BIN)/autotomy demo

check: setup  ## ruff, mypy --strict, import-linter
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: check  ## every check: the above and all tests, in two halves side by side
	$(MAKE) --no-print-directory --jobs 2 test-installations test-parts

# Most of the time a test waits for processes: drills, which start whole installations, beside everything else.
test-installations: setup
	$(BIN)/pytest -m "not soak" -o cache_dir=.pytest_cache/installations tests/lab/drills tests/lab/stack

test-parts: setup
	$(BIN)/pytest -m "not soak" -o cache_dir=.pytest_cache/parts --ignore tests/lab/drills --ignore tests/lab/stack

histories: setup  ## record the golden histories anew (docs/changing-workflows.md says when)
	AUTOTOMY_RECORD_HISTORIES=1 $(BIN)/pytest tests/workflows -m "not soak"

soak: setup  ## the long suites: every drill ten times, long simulations
	$(BIN)/pytest -m soak

format: setup  ## format and fix what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build *.egg-info
