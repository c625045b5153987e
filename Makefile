# Two commands on a fresh machine with Python 3.11+ and make: `make demo` and `make test`.
# Each installs what it needs into .venv the first time; afterwards only when the pinned set changes.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
# With two torch threads on two busy cores, each waits for the other at every operation.
export OMP_NUM_THREADS ?= 1

.PHONY: demo test test-slow test-all conformance engines gpu check lint types docs docs-serve dist pyz clean help

help:  ## Show this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:.*## /\t/' | expand -t 13

demo: $(VENV)/.installed  ## Compare GRPO with GDPO on the project of `gdpo init` (3 minutes, CPU)
	@mkdir -p runs && folder=$$(mktemp -d runs/demo.XXXXXX) && $(BIN)/gdpo init $$folder && \
	cd $$folder && "$(CURDIR)/$(BIN)/gdpo" compare recipe.yaml && echo "all files: $$folder"

# Checks the shapes that the formulas declare, at every call: tests of other rooms would take twice as long.
SHAPES := --jaxtyping-packages=gdpo.advantages,gdpo.diagnostics,beartype.beartype
FORMULAS := tests/advantages tests/diagnostics tests/testing src
test: export HYPOTHESIS_PROFILE ?= fast
test: $(VENV)/.installed  ## Run the fast tests (4 to 5 minutes)
	$(BIN)/pytest -q -n 2 -m "not slow" $(SHAPES) $(FORMULAS)
	$(BIN)/pytest -q -n 2 -m "not slow" $(FORMULAS:%=--ignore=%)

test-slow: $(VENV)/.installed  ## Run the tests that `make test` leaves out: long ones, trainings
	$(BIN)/pytest -q -n 2 -m slow

test-all: $(VENV)/.installed  ## Run all tests, with more examples of each property (more than 20 minutes)
	$(BIN)/pytest -q -n 2 $(SHAPES)

FRAMEWORKS ?=
TESTS ?=
conformance: $(VENV)/.installed  ## Our advantages on the frameworks' own code paths (FRAMEWORKS="verl trl@newest", TESTS=1)
	$(BIN)/python -m tests.conformance $(FRAMEWORKS) $(if $(TESTS),--tests)

ENGINES ?=
RUNS ?=
engines: $(VENV)/.installed  ## Complete trainings on real engines, on a CPU (ENGINES="trl-vllm tunix", RUNS="colocate gdpo")
	$(BIN)/python -m tests.engines $(ENGINES) $(if $(RUNS),--runs $(RUNS))

ROWS ?=
gpu: $(VENV)/.installed  ## What only a GPU can show, in twelve minutes; without a GPU, prints the list (ROWS=rlla_sft.json.gz)
	$(BIN)/python -m benchmarks.gpu $(if $(ROWS),--rows $(ROWS))

lint: $(VENV)/.installed
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(VENV)/.installed
	$(BIN)/pyright

check: lint types test-all  ## Lint, types and all tests: what a change must pass

# Version 2 of MkDocs is another program; its notice is for those who might install it.
docs docs-serve: export NO_MKDOCS_2_WARNING := 1
docs: export PYTHONWARNINGS := ignore:IProgress
# The tutorials' commands write no colours and no spinners.
docs: export TTY_COMPATIBLE := 0
docs: export PYTHONPATH := $(CURDIR):$(PYTHONPATH)    # python -m benchmarks.toys
docs docs-serve: export PATH := $(CURDIR)/$(BIN):$(PATH)
docs: $(VENV)/.docs  ## Build the documentation site strictly into site/, tutorials executed
	@rm -rf .cache/tutorials && mkdir -p .cache/tutorials    # what the tutorials write
	cd .cache/tutorials && mkdocs build --strict -f ../../mkdocs.yml

docs-serve: export EXECUTE_TUTORIALS := false
docs-serve: $(VENV)/.docs  ## Show the site while its pages are edited (tutorials are not executed)
	$(BIN)/mkdocs serve

dist: $(VENV)/.release  ## Build the wheel and the sdist, and try the wheel in empty environments
	PYTHON=$(BIN)/python .ci/try_wheel

pyz:  ## Build dist/gdpo.pyz: `gdpo analyze` in one file, for any Python 3.11+ with numpy (parquet: pyarrow)
	$(PYTHON) .ci/build_pyz.py

$(VENV)/.docs $(VENV)/.release: $(VENV)/.%: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@

$(VENV)/.installed: pyproject.toml constraints.txt requirements-bfcl.txt
	@test -n "$(PYTHON)" || { echo "gdpo needs Python 3.11 or newer, and none was found on the path"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,lora,math,code,server,plots,dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-bfcl.txt
	@touch $@

clean:  ## Remove the environment and caches; runs stay
	rm -rf $(VENV) site dist .cache .conformance .engines .pytest_cache .ruff_cache .hypothesis
