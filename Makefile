# The least that is needed: Python 3.11 or newer, make, git. `uv` makes the first call faster if it is there.

PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then echo "$$name"; exit; fi; done)
VENV := .venv
BIN := $(VENV)/bin
PORT ?= 4000
IMAGE ?= loopway
UV := $(shell uv pip install --help 2>/dev/null | grep -q -e '--group' && command -v uv)
INSTALL = $(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install --quiet --disable-pip-version-check)

.DEFAULT_GOAL := help
.PHONY: help demo check fix test cov bench bench-peers soak fuzz audit sbom lock chart image

help:  ## Show this
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.core  ## Run the gateway over a scripted model: no key, no network (PORT=4000)
	@$(BIN)/python -m loopway demo --port $(PORT)

check: $(VENV)/.dev  ## Format, lint and types, nothing is changed
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy --strict

fix: $(VENV)/.dev  ## Format, and mend what ruff can mend
	$(BIN)/ruff check --fix --exit-zero --quiet
	$(BIN)/ruff format
	$(BIN)/ruff check

test: $(VENV)/.test  ## Run every test on two cores; a warning is an error (ARGS="-k word")
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

cov: $(VENV)/.test  ## Run every test, and show the lines that none has run
	$(BIN)/python -m pytest --cov --cov-report=term-missing $(ARGS)

bench: $(VENV)/.core  ## Measure against a bare forwarder; needs wrk and nginx (ARGS="--only rerun")
	$(BIN)/python benchmarks/run.py $(ARGS)

bench-peers: $(VENV)/.core  ## Measure LiteLLM, Portkey and agentic-api beside it; installs them
	$(BIN)/python benchmarks/peers.py $(ARGS)

soak: $(VENV)/.test  ## Mixed load with faults for a minute (SECONDS=3600 for an hour)
	$(BIN)/python benchmarks/soak.py $(or $(SECONDS),60)

fuzz: $(VENV)/.test  ## Feed the readers random bytes for a minute (SECONDS=)
	@$(INSTALL) 'atheris>=3'
	$(BIN)/python tests/fuzz/for_atheris.py $(or $(SECONDS),60)

audit: $(VENV)/.core  ## Look for known vulnerabilities in what is installed
	@$(INSTALL) 'pip-audit>=2.9'
	$(BIN)/python -m pip_audit --strict --disable-pip --require-hashes -r requirements/lock.txt

sbom: $(VENV)/.core  ## Write sbom.json (CycloneDX) of what is installed
	@$(INSTALL) 'cyclonedx-bom>=7'
	$(BIN)/cyclonedx-py requirements requirements/lock.txt --output-reproducible -o sbom.json

lock: $(VENV)/.core  ## Renew requirements/*.txt, which the image installs
	@$(INSTALL) uv
	$(BIN)/uv pip compile --quiet pyproject.toml --extra all --universal --python-version 3.11 --generate-hashes \
		--custom-compile-command "make lock" -o requirements/lock.txt
	$(BIN)/uv pip compile --quiet requirements/build.in --universal --python-version 3.11 --generate-hashes \
		--no-annotate --custom-compile-command "make lock" -o requirements/build.txt

chart: $(VENV)/.test  ## Renew what is generated in helm/loopway, after a change of values.yaml or the settings
	$(BIN)/python helm/generate.py

image:  ## Build the container image with docker, podman or buildah (IMAGE=loopway)
	@test -f Dockerfile || { echo 'there is no Dockerfile yet'; exit 1; }
	@tool=$$(command -v docker || command -v podman || command -v buildah) \
		|| { echo 'install docker, podman or buildah first'; exit 1; }; \
	echo "$$tool build -t $(IMAGE) ."; "$$tool" build -t $(IMAGE) .

# What is installed, one stamp each; `make` installs again only when pyproject.toml is newer.

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo 'no Python 3.11 or newer was found; name one: make PYTHON=/path/to/python3'; exit 1; }
	@echo "setting up $(VENV) with $(PYTHON); this is done once"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
		echo 'a virtual environment cannot be made; on Debian and Ubuntu: apt-get install python3-venv'; exit 1; }

# `--group` wants pip 25.1.
$(VENV)/.pip: $(BIN)/python
	@$(if $(UV),true,$(INSTALL) --upgrade 'pip>=25.1')
	@touch $@

$(VENV)/.core: pyproject.toml $(VENV)/.pip
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.test: pyproject.toml $(VENV)/.pip
	@$(INSTALL) --editable '.[all]' --group test
	@touch $(VENV)/.core $@

$(VENV)/.dev: pyproject.toml $(VENV)/.pip
	@$(INSTALL) --editable '.[all]' --group dev
	@touch $(VENV)/.core $(VENV)/.test $@
