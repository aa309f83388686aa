# SPDX-License-Identifier: Apache-2.0
# Every target sets up what it needs. ARGS goes to the command behind demo, bench and conformance.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
ARGS ?=

.PHONY: setup demo test test-long lint bench conformance clean

setup: .venv/.complete

.venv/.complete: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name one with make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
		--constraint constraints.txt --editable '.[demo,dev]'
	@touch $@

demo: setup
	$(BIN)/rollout-router demo $(ARGS)

test: setup
	$(BIN)/pytest -n 3 --dist worksteal -m "not long" $(ARGS)

test-long: setup
	$(BIN)/pytest -n 2 --dist worksteal -m long --timeout 1200 $(ARGS)

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

bench: setup
	$(BIN)/rollout-router bench $(ARGS)

conformance: setup
	$(BIN)/rollout-router conformance $(ARGS)

clean:
	rm -rf .venv .cache .demo .mypy_cache .ruff_cache .pytest_cache .hypothesis
