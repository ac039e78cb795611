# The commands of this project. `make` alone lists them; each one sets up what it needs in .venv.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
REPORT ?= warplens-report
# Bytecode is kept, whatever the shell says: else each worker and each program that a test starts compiles all anew.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
# Own kernels are compiled here, which Triton's interpreter runs elsewhere.
GPU_TESTS := tests/workloads tests/adaptive tests/collect/test_recording.py

SECONDS ?= 3600
OLDEST ?= .venv-oldest

.PHONY: help demo test test-all test-every test-oldest test-gpu fuzz lint format bench docs new-table new-finding new-format clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-11s %s\n", $$1, $$2}'

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 10) else "Warplens needs Python 3.10 or newer; set PYTHON=python3.x")'
	@echo "setting up $(VENV) …"
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP) install --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP) install --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	@$(PIP) install --constraint constraints.txt --editable '.[docs]'
	@touch $@

demo: $(VENV)/.installed ## report on the profiles shipped with the package
	@$(BIN)/warplens demo --output $(REPORT)

test: $(VENV)/.installed-dev ## run the tests, but for the slow ones
	@POLARS_MAX_THREADS=1 $(PYTEST) --numprocesses=auto --maxprocesses=4 --dist=loadfile -m "not slow"

test-all: $(VENV)/.installed-dev ## run the slow tests, too, on a quarter of all recordings; properties on many examples
	@$(PYTEST) --numprocesses=auto --maxprocesses=4 --dist=loadfile --hypothesis-profile=many -m "not every"

test-every: $(VENV)/.installed-dev ## run all tests on all recordings (an hour and more on two cores)
	@$(PYTEST) --numprocesses=auto --maxprocesses=4 --dist=loadfile --hypothesis-profile=many

$(OLDEST)/.installed: pyproject.toml
	@$(PYTHON) -m venv $(OLDEST)
	@sed -n '/^dependencies = \[/,/^\]/s/^ *"\(.*\)>=\(.*\)",$$/\1==\2/p' pyproject.toml > $(OLDEST)/oldest.txt
	@$(OLDEST)/bin/python -m pip --disable-pip-version-check --quiet install --constraint $(OLDEST)/oldest.txt \
		--editable . pytest pytest-xdist hypothesis perfetto
	@touch $@

# The oldest Typer warns of the newest Click; the chart library in the package is that of the pinned version.
test-oldest: $(OLDEST)/.installed ## readers and reports with the oldest version of each library that is allowed
	@$(OLDEST)/bin/python -m pytest --numprocesses=auto --maxprocesses=4 --dist=loadfile -m "not slow" \
		-W ignore::DeprecationWarning tests/readers tests/report \
		--deselect tests/report/test_html.py::test_the_chart_library_is_the_one_that_charts_are_written_for

test-gpu: $(VENV)/.installed-dev ## what only a GPU can show; PyTorch and Triton must be in the environment
	@$(PYTEST) $(GPU_TESTS) -ra

fuzz: $(VENV)/.installed-dev ## damaged files of every kind, for an hour or SECONDS=…; what it finds is kept in .fuzz
	@$(BIN)/python -m tests.fuzz.campaign --seconds $(SECONDS) --processes $$(nproc)

lint: $(VENV)/.installed-dev ## style, types, and the import contracts of the rooms
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(VENV)/.installed-dev ## rewrite the sources in the project's style
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

bench: $(VENV)/.installed-dev ## speed and memory against peers, in one run (needs minutes)
	@$(BIN)/python -m benchmarks.run

docs: $(VENV)/.installed-docs ## build the documentation into site/
	@$(BIN)/mkdocs build --strict

new-table new-finding new-format: $(VENV)/.installed-dev ## add a command, a finding, a file format that works: NAME=…
	@$(BIN)/python examples/additions/add.py $(@:new-%=%) $(NAME)

clean: ## remove everything that the other commands made
	rm -rf $(VENV) $(OLDEST) $(REPORT) site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
