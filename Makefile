# Autotomy: `make demo` shows it, `make test` and `make verify` prove it. Needs Python 3.11+, make and the package registry; nothing else.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# A run starts hundreds of Python processes: each reads the bytecode that the first one wrote, also where images say otherwise.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo check pure fast test verify soak histories format clean
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

# The tests of what needs no server and no other process: rules, the simulated world's parts, judges, pages. The two long searches
# among them have their turn in `make verify`.
PURE_DRILLS := command default_bundle endings every_check figures judge report retry
SEARCHES := tests/domain/test_instance_life.py tests/simulation/test_simulation.py
PURE := $(filter-out $(SEARCHES), $(wildcard \
    tests/domain/test_*.py tests/domain/*/test_*.py tests/simulation/test_*.py tests/lab/oracle/test_*.py \
    tests/deploy/*_page.py $(PURE_DRILLS:%=tests/lab/drills/test_%.py)))

# So many tests at a time (tests/side_by_side.py), and one line that tells how far it is (tests/progress.py).
PYTEST := $(BIN)/pytest --quiet --progress --override-ini console_output_style=classic
AT_ONCE ?= 5
SIDE_BY_SIDE := --numprocesses $(AT_ONCE) --no-loadscope-reorder

fast: setup  ## while you work: check, and the tests of what is pure (a minute)
	@$(MAKE) --no-print-directory --jobs 2 check pure

pure: setup
	@echo "tests of what is pure"
	@$(PYTEST) -m "not soak and not verify" $(PURE)

test: fast  ## before you push: fast, every process by itself, golden histories, ten drills, five restart cells (six minutes)
	@echo "every other test, but those of make verify and make soak"
	@$(PYTEST) $(SIDE_BY_SIDE) -m "not soak and not verify" $(PURE:%=--ignore=%)

verify: setup  ## what test leaves out: long workflow tests, searches, all other drills and cells that are not in soak; CI runs both
	$(PYTEST) $(SIDE_BY_SIDE) -m "verify and not soak"

histories: setup  ## record the golden histories anew (docs/changing-workflows.md says when)
	AUTOTOMY_RECORD_HISTORIES=1 $(BIN)/pytest tests/workflows -m "not soak"

soak: setup  ## the long suites: every drill ten times, the whole restart table, long simulations (hours)
	$(BIN)/pytest -m soak

format: setup  ## format and fix what ruff can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove .venv and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build *.egg-info
