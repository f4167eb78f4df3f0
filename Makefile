# The ways in: `make run` serves the demo model, `make test` runs every test. Works with GNU make 3.81.

VENV := .venv
BIN := $(VENV)/bin
# Evaluated only where it is used: the first Python here that is new enough.
PYTHON = $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$name && break; done)

.DEFAULT_GOAL := help
.PHONY: help setup run demo check test figures engine prefixes simulate load chaos clean

help:  ## list these targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.installed  ## make .venv with Forebay and its tools in it

# A plain path in .venv, not an import hook: mypy and import-linter see the same files as Python.
$(VENV)/.installed: pyproject.toml
	@test -n "$(PYTHON)" || { echo "Forebay needs Python 3.11 or newer, and found none" >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --config-settings editable_mode=compat -e ".[dev]"
	touch $@

run: setup  ## serve the demo model on 127.0.0.1:8000 (MODEL=… for another one)
	$(BIN)/forebay up $(if $(MODEL),--model "$(MODEL)")

demo: setup  ## fetch the demo model into FOREBAY_HOME (~/.forebay), and no more
	$(BIN)/forebay fetch --model demo

check: setup  ## formatting, lint, types, import contracts, house rules: seconds
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q tests/test_tidy.py tests/test_packaging.py

# In two processes, for many tests wait; tests/dealt_by_file.py deals them. With work for both cores, threads of
# OpenBLAS would only wait for each other.
test: setup  ## every test, those with real processes and the demo model too
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope --no-loadscope-reorder

figures: setup  ## measure throughput, time to first token and the way back from a death: minutes
	$(BIN)/python -m ops.figures

engine: setup  ## set the engine beside mlx-lm's BatchGenerator in one process (WORKS="mixed …")
	$(BIN)/python -m ops.engine $(WORKS)

prefixes: setup  ## measure what kept and shared beginnings of prompts save: a quarter of an hour (WORKS="ttft …")
	$(BIN)/python -m ops.prefixes $(WORKS)

simulate: setup  ## run admission and scheduler against a model of costs, and print the table (SEED=…)
	$(BIN)/python -m tests.simulation --seed $(or $(SEED),1)

load: setup  ## floods, overload, fairness, the proxy alone, idle streams: half an hour (SCENARIOS="flood …")
	$(BIN)/python -m ops.load $(or $(SCENARIOS),flood overload fairness proxy idle)

chaos: setup  ## let everything die, hang and fill up, and judge it from outside: an hour (SCENARIOS="kills …")
	$(BIN)/python -m pytest -q tests/chaos --all-points
	$(BIN)/python -m ops.chaos $(or $(SCENARIOS),kills exhaustion poison down proxy upgrade soak)

clean:  ## remove .venv and what the tools cached; models stay in FOREBAY_HOME
	rm -rf $(VENV) *.egg-info build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
