# `make repro` reproduces the study that params.yaml names, `make test` runs the tests; both set themselves up.
#   STUDY=...      switch to this study first (repro, flow)
#   TORCH=cpu      PyTorch's build (also: cu130, auto); default: what the package index serves
#   PYTHON=...     the interpreter for the virtual environment (3.11 or newer)
#   VENV=...       where the environment lives (default .venv)
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
READY := $(VENV)/.ready
export PATH := $(BIN):$(PATH)

CANDIDATES := python3 python python3.14 python3.13 python3.12 python3.11
RECENT := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))
PYTHON ?= $(firstword $(foreach p,$(CANDIDATES),$(shell $(p) -c '$(RECENT)' 2>/dev/null && echo $(p))) python3)

.DEFAULT_GOAL := help
.PHONY: help setup repro test flow ui lint format clean distclean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 18
	@sed -n 's/^#  /  /p' Makefile

setup: $(READY)  ## virtual environment with everything pinned by constraints.txt

$(READY): pyproject.toml constraints.txt tools/setup.py
	@$(PYTHON) tools/setup.py $(VENV) $(if $(TORCH),--torch $(TORCH))
	@touch $@

repro: $(READY)  ## reproduce the study: data, partitions, tuning, training, comparison, report
	@$(if $(STUDY),fedweave study use $(STUDY))
	@dvc repro
	@python -m pipelines.leaderboard

test: $(READY)  ## the whole test suite
	@python -m pytest

flow: $(READY)  ## the same study, scheduled by Prefect: one task per stale stage
	@python -m pipelines.flows $(if $(STUDY),--study $(STUDY))

ui: $(READY)  ## MLflow UI and Prefect server on loopback, until Ctrl-C
	@exec python -m pipelines.ui

lint: $(READY)  ## ruff and mypy
	@ruff check .
	@ruff format --check .
	@mypy

format: $(READY)  ## rewrite the code in the project's format
	@ruff check --fix .
	@ruff format .

clean:  ## remove results and records; data, caches and the environment stay
	@rm -rf results dvc_plots .fedweave mlflow.db* mlruns mlartifacts .prefect .pytest_cache .ruff_cache .mypy_cache

distclean: clean  ## remove everything that git does not track
	@rm -rf $(VENV) data .dvc/cache .dvc/tmp .dvc/config.local
