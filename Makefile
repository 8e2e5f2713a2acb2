# Every command a developer needs; `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Two unset thread pools beside busy cores were seen 50 times slower.
export OMP_NUM_THREADS ?= 1
export MKL_NUM_THREADS ?= 1
# Where it is set, each of the thousands of processes of the tests compiles our modules anew (0.1 to 0.3 s a start).
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help install demo test test-line test-slow test-gpu check format bench dist clean

help: ## show this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

# torch goes first and by its exact version: pip then takes the CPU build where it is set up with one.
$(STAMP): pyproject.toml constraints/constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints/constraints.txt "torch==2.13.0"
	$(BIN)/python -m pip install --quiet --constraint constraints/constraints.txt --editable ".[dev,rtx]"
	@touch $(STAMP)

install: $(STAMP) ## create .venv and install everything

demo: $(STAMP) ## write the digits as images and run the whole line on them
	$(BIN)/python examples/digits.py raw/digits
	$(BIN)/shardline run configs/digits.yaml

# Measured times, and what guards what: docs/testing.md.
test: check ## all checks, and all quick tests; pages are tested with /usr/bin/chromium
	$(BIN)/python -m pytest -m "not slow and not line and not gpu" --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-line: $(STAMP) ## the tests that guard the whole line: digits, kills, restarts, elastic ranks, a rehearsal
	$(BIN)/python -m pytest -m "line and not slow and not gpu" --numprocesses 2 --dist load

test-slow: $(STAMP) ## the slow tests
	$(BIN)/python -m pytest -m "slow and not gpu"

# Nothing is installed for it: a GPU machine without a network runs what it has, and what is missing is skipped by name.
test-gpu: ## what needs a GPU, in under 8 minutes, with rates beside a bare DDP loop (docs/gpu.md)
	$(firstword $(wildcard $(BIN)/python) $(PYTHON)) -m pytest -m gpu tests/gpu tests/trainer

check: $(STAMP) ## ruff, mypy, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## rewrite the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP) ## benchmarks, as ratios against named peers
	$(BIN)/python benchmarks/sharding.py
	$(BIN)/python benchmarks/reading.py
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/export.py
	$(BIN)/python benchmarks/profiling.py

dist: $(STAMP) ## the wheel and the source distribution, in dist/
	$(BIN)/python -m hatchling build

clean: ## remove the environment, caches, the demo's images and runs
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis raw/digits runs/digits
