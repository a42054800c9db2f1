# `make repro` reproduces the study that params.yaml names, `make test` runs the tests; both set themselves up.
#   STUDY=...      switch to this study first (repro, flow)
#   ARGS=...       pytest's arguments (test): files, -k, -n
#   LIMIT=...      seconds after which the tests are stopped (test, default 2700)
#   TORCH=cpu      PyTorch's build (also: cu130, auto); default: what the package index serves
#   PYTHON=...     the interpreter for the virtual environment (3.11.5 or newer)
#   VENV=...       where the environment lives (default .venv)
VENV ?= .venv
BIN := $(abspath $(VENV))/bin
READY := $(VENV)/.ready
export PATH := $(BIN):$(PATH)

CANDIDATES := python3 python python3.14 python3.13 python3.12 python3.11
RECENT := import sys; sys.exit(not (3, 11, 5) <= sys.version_info < (3, 15))
PYTHON ?= $(firstword $(foreach p,$(CANDIDATES),$(shell $(p) -c '$(RECENT)' 2>/dev/null && echo $(p))) python3)

# Tools that look at the environment live beside it, so that they pin nothing in it.
tool = $(VENV)/tools/$(1)/bin/$(1)
CYCLONEDX := cyclonedx-bom==7.5.0
PIP_AUDIT := pip-audit==2.10.1

.DEFAULT_GOAL := help
.PHONY: help setup repro test acceptance flower ray slurm bench peers flow nightly ui lint docs wheel sbom audit format clean distclean

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1	\2/p' Makefile | expand -t 18
	@sed -n 's/^#  /  /p' Makefile

setup: $(READY)  ## virtual environment with everything pinned by constraints.txt

$(READY): pyproject.toml constraints.txt tools/setup.py
	@$(PYTHON) tools/setup.py $(VENV) $(if $(TORCH),--torch $(TORCH))
	@touch $@

flower: .flower/.ready  ## the environment of a federation's hosts, with Flower: .flower, pinned by constraints-flower.txt

.flower/.ready: pyproject.toml constraints-flower.txt tools/setup.py
	@$(PYTHON) tools/setup.py .flower --extras flower --constraints constraints-flower.txt $(if $(TORCH),--torch $(TORCH))
	@touch $@

repro: $(READY)  ## reproduce the study: data, partitions, tuning, training, comparison, report
	@git rev-parse --git-dir >/dev/null 2>&1 || grep -qs no_scm .dvc/config .dvc/config.local || { echo "error: $(CURDIR): is not a checkout \
	  of git, which DVC asks for; make it one (git init), or tell DVC that there is none (dvc config core.no_scm true)" | tr -s '\t ' ' ' >&2; exit 2; }
	@$(if $(STUDY),python -m fedweave.pipelines.commands.main study use $(STUDY))
	@exec python -m fedweave.pipelines.launching.reproduce

test: $(READY)  ## the tests of the code
	@python tools/run_tests.py $(ARGS)

acceptance: $(READY)  ## slow tests from outside: guides and examples as typed, both UIs in a browser, workers, SLURM, fresh projects
	@python tools/run_tests.py -m acceptance $(ARGS)

ray: .ray/.ready  ## the tests of Ray, with two nodes, in an environment of their own (.ray)
	@PATH="$(CURDIR)/.ray/bin:$$PATH" .ray/bin/python tools/run_tests.py -m acceptance $(or $(ARGS),tests/pipelines/test_ray.py)

.ray/.ready: pyproject.toml constraints.txt tools/setup.py
	@$(PYTHON) tools/setup.py .ray --extras pipeline,datasets,dev,ray $(if $(TORCH),--torch $(TORCH))
	@touch $@

slurm: $(READY)  ## the tests of SLURM, with two nodes on this host; installs the system's packages (root) where they are missing
	@python tools/slurm.py install
	@python tools/run_tests.py -m acceptance $(or $(ARGS),tests/pipelines/test_slurm.py)

flow: $(READY)  ## the same study, scheduled by Prefect: one task per stale stage
	@python -m fedweave.pipelines.commands.main flow $(if $(STUDY),--study $(STUDY))

nightly: $(READY)  ## a year of flights in weekly deliveries, with planted events; its last weeks through DVC, Prefect and MLflow
	@python -m tools.nightly

ui: $(READY)  ## MLflow UI and Prefect server on loopback, until Ctrl-C
	@exec python -m fedweave.pipelines.ui

bench: $(READY)  ## seconds a round beside a hand-written loop, and beside the peers where `make peers` was run
	@python -m benchmarks
	@python -m benchmarks.coverage

peers: .peers/.ready  ## an environment for the peers that `make bench` compares with (benchmarks/peers.txt)

.peers/.ready: benchmarks/peers.txt
	@$(PYTHON) -m venv .peers
	@.peers/bin/python -m pip install --quiet --disable-pip-version-check --requirement benchmarks/peers.txt
	@touch $@

lint: $(READY)  ## ruff and mypy
	@ruff check .
	@ruff format --check .
	@mypy

docs: .docs/.ready  ## the documentation site in site/; a broken link or anchor is an error
	@NO_MKDOCS_2_WARNING=1 .docs/bin/python -m mkdocs build --strict >.docs/log 2>&1 || { grep -v '^INFO' .docs/log >&2; exit 1; }  # --quiet would leave warnings uncounted
	@echo "site/index.html; with a search: python -m http.server --bind 127.0.0.1 --directory site"

.docs/.ready: docs/requirements.txt
	@$(PYTHON) -m venv .docs
	@.docs/bin/python -m pip install --quiet --disable-pip-version-check --requirement docs/requirements.txt
	@touch $@

$(VENV)/tools/%/.ready: $(READY)
	@python -m venv $(VENV)/tools/$*
	@$(VENV)/tools/$*/bin/python -m pip install --quiet --disable-pip-version-check $(if $(filter pip-audit,$*),$(PIP_AUDIT),$(CYCLONEDX))
	@touch $@

wheel: $(READY)  ## the package as users install it: built, in an empty environment, with the code of the guides
	@python -m tools.check_wheel

sbom: $(VENV)/tools/cyclonedx-py/.ready  ## sbom.json: what constraints.txt pins, as CycloneDX
	@PYTHONWARNINGS=ignore $(call tool,cyclonedx-py) requirements constraints.txt --pyproject pyproject.toml \
	  --output-reproducible --of JSON -o sbom.json

audit: $(VENV)/tools/pip-audit/.ready  ## known vulnerabilities of what constraints.txt pins; needs the package index's own data
	@$(call tool,pip-audit) --strict --requirement constraints.txt --no-deps --disable-pip

format: $(READY)  ## rewrite the code in the project's format
	@ruff check --fix .
	@ruff format .

clean:  ## remove results and records; data, caches and the environment stay
	@rm -rf results dvc_plots .fedweave mlflow.db* mlruns mlartifacts .prefect .pytest_cache .ruff_cache .mypy_cache site

distclean: clean  ## also remove data, DVC's cache and the environments; dvc.lock, params.yaml and other files of yours stay
	@[ ! -e $(VENV) ] || [ -f $(VENV)/pyvenv.cfg ] || { echo "error: $(VENV): is not a virtual environment and stays; set VENV" >&2; exit 2; }
	@rm -rf $(VENV) .flower .peers .ray .slurm .docs sbom.json data .dvc/cache .dvc/tmp .dvc/config.local
