# The few commands that people need.
#   make run      serve a real model on 127.0.0.1:8000
#   make test     lint, types, import contracts and the whole test suite
#   make install  the set-up alone

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: run install test lint unit format clean

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

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Outrider needs Python 3.11 or newer; $(PYTHON) is older: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.engine: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --quiet --constraint constraints.txt --editable '.[engine]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(PIP) install --quiet --constraint constraints.txt --editable '.[engine,dev]'
	@touch $@ $(VENV)/.engine
