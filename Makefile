# SPDX-License-Identifier: Apache-2.0
# Every target sets up what it needs. ARGS goes to the command behind a target. `make` lists them.
.DEFAULT_GOAL := help
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
ARGS ?=
# Tests start hundreds of processes: without compiled modules each would compile them anew.
export PYTHONDONTWRITEBYTECODE :=

# NeMo Gym wants another Python, and an environment of its own: docs/nemo-gym.md.
PYTHON_GYM ?= $(shell for python in python3.13 $$HOME/.pyenv/versions/3.13*/bin/python; do \
	$$python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null && \
	echo $$python && break; done)

.PHONY: help setup demo test test-long test-gym test-page lint bench conformance docs reference wheel clean

help: ## what each target does
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: .venv/.complete ## make .venv, with everything pinned; the others call it

.venv/.complete: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[demo,dev,docs]'
	@touch $@

demo: setup ## play 30 rollouts through killed owners, and prove what was captured
	$(BIN)/rollout-router demo $(ARGS)

test: setup ## unit and end-to-end tests (under 5 minutes)
	@# Test modules are compiled once, half on each core: workers that begin together would each do it.
	@ls tests/unit/__pycache__/*pytest* >/dev/null 2>&1 || for half in unit e2e; do \
		$(BIN)/pytest --collect-only -qq tests/$$half >/dev/null & done; wait
	@# Five on two cores: a third of what they do is waiting for processes and the disk.
	$(BIN)/pytest -n 5 --dist worksteal -m "not long and not browser" $(ARGS)

test-long: setup ## the tests that take longer
	$(BIN)/pytest -n 2 --dist worksteal -m long --timeout 1200 $(ARGS)

test-gym: setup .venv-gym/.complete ## a stock NeMo Gym with two workers; needs Python 3.13
	ROLLOUT_ROUTER_GYM_PYTHON=$(CURDIR)/.venv-gym/bin/python \
		$(BIN)/pytest tests/e2e/test_gym.py tests/e2e/test_gym_switch.py \
			tests/e2e/test_gym_toolsandbox.py $(ARGS)

test-page: setup .cache/axe-core/.complete ## the live page in a real Chromium; needs chromium and its driver
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || \
		{ echo "The page is tested in Chromium: apt-get install chromium chromium-driver"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[browser]'
	$(BIN)/pytest -m browser $(ARGS)
	@echo "pictures and figures: .artefacts/page/"

# What checks the page for barriers comes from npm; without it those checks are skipped and say so.
.cache/axe-core/.complete:
	@mkdir -p $(@D)
	@npm install --prefix $(@D) --no-save --no-audit --no-fund --no-update-notifier \
		--loglevel=error axe-core@4.14.1 && touch $@ || echo "axe-core could not be had from npm"

.venv-gym/.complete: pyproject.toml requirements-gym.txt
	@test -n "$(PYTHON_GYM)" || \
		{ echo "Python 3.13 is needed for NeMo Gym; name one with make test-gym PYTHON_GYM=..."; exit 1; }
	$(PYTHON_GYM) -m venv .venv-gym
	.venv-gym/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
		--ignore-requires-python --requirement requirements-gym.txt --editable .
	@touch $@

lint: setup ## ruff, formatting, mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: setup ## measure the stages of a call; writes docs/benchmarks.md
	@# A missed target is an end of 1, and a run all the same: only one without results is dropped.
	$(BIN)/rollout-router bench --json --evidence docs/benchmarks.md $(ARGS) >docs/benchmarks.new; \
		code=$$?; test ! -s docs/benchmarks.new || mv docs/benchmarks.new docs/benchmarks.json; \
		rm -f docs/benchmarks.new; exit $$code

conformance: setup ## real harnesses with and without deltas; needs a package index
	$(BIN)/rollout-router conformance $(ARGS)

docs: setup ## the documentation as a site, in .site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

reference: setup ## write docs/reference anew from the code
	$(BIN)/python tools/reference.py

wheel: setup ## wheel and sdist, in dist
	$(BIN)/python -m hatchling build $(ARGS)

clean: ## remove what the targets made
	rm -rf .venv .venv-gym .site .artefacts .cache .demo dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
