# The few commands that people need.
#   make run      serve a real model on 127.0.0.1:8000
#   make test     lint, types, import contracts and the whole test suite
#   make install  the set-up alone
#   make peers    other engines, measured in turn with ours

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# What an installation is made of: when one of these changes, the next target installs anew.
SOURCES := pyproject.toml setup.py constraints.txt $(wildcard src/outrider/*/native/*)

.PHONY: run install test lint unit peers proto format clean

run: $(VENV)/.engine
	@exec $(BIN)/outrider run $(ARGS)

install: $(VENV)/.dev

test: lint unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# One compute thread per worker: workers that each take every core only get in each other's way.
# The whole suite also holds the branch coverage of the exact rooms (see pyproject.toml) at 100%.
unit: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadscope $(or $(ARGS),--cov --cov-report=term:skip-covered)

# Other engines on the same weights and prompts, in turn with ours; see docs/peers.md.
PEERS := $(BIN)/python -m outrider.bench.baselines
RESULTS ?= .peers/results.jsonl

peers: $(VENV)/.bench
	@test -n "$(TARGET)" -a -n "$(DRAFT)" -a -n "$(PROMPTS)" || \
		{ echo 'Say: make peers TARGET=T.gguf DRAFT=D.gguf PROMPTS="P.jsonl ..."' >&2; exit 1; }
	-$(PEERS) build
	$(PEERS) run $(PROMPTS) --target $(TARGET) --draft $(DRAFT) --results $(RESULTS) $(ARGS)
	$(PEERS) report $(RESULTS) --output .peers/peers.md --plot .peers/peers.svg

proto: $(VENV)/.dev
	$(BIN)/python scripts/generate_rpc.py

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Outrider needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.engine: $(SOURCES) | $(VENV)/bin/python
	$(PIP) install --quiet --constraint constraints.txt --editable '.[engine]'
	@touch $@

$(VENV)/.dev: $(SOURCES) | $(VENV)/bin/python
	$(PIP) install --quiet --constraint constraints.txt --editable '.[engine,dev]'
	@touch $@ $(VENV)/.engine

$(VENV)/.bench: $(SOURCES) | $(VENV)/bin/python
	$(PIP) install --quiet --constraint constraints.txt --editable '.[engine,bench]'
	@touch $@
