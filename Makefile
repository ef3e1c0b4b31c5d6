# make demo   train a model on faces and take the faces back out of its weights
# make test   lint, types and tests
# make slow   the tests of more than 10 s each, which make test leaves out
# make truth  audits of 25 targets whose truth is known; fails on a wrong verdict
# make malformed  over 1,000 malformed inputs: one line each, soon, nothing left behind
# make docs   links and the page made from code are checked, then the site is built in build/site
# make mutants  small wrong changes in what says that something is proved; tests must notice them
# make bench  fast paths beside the obvious way, in one run
# Each makes .venv and installs what it needs first.

PYTHON ?= python3
BIN := .venv/bin
SEED ?= 0

.PHONY: demo test slow truth malformed mutants docs bench clean

demo: .venv/installed
	@echo "== demo: train on 50 faces, take them back out of the weights (seed $(SEED))"
	$(BIN)/remnant demo --seed $(SEED)

test: .venv/installed-dev
	@echo "== test: lint (ruff), types (mypy), tests (pytest)"
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

slow: .venv/installed-dev
	@echo "== slow: tests of more than 10 s each"
	$(BIN)/python -m pytest -n 2 --dist worksteal -m slow

truth: .venv/installed
	@echo "== truth: 25 targets of known truth, audited through the command line"
	$(BIN)/python benchmarks/truth.py --jobs 2

malformed: .venv/installed-dev
	@echo "== malformed: generated files, specs, flags, sweeps, run files and modules (seed $(SEED))"
	$(BIN)/python tests/malformed_run.py --seed $(SEED)

docs: .venv/installed-docs
	@echo "== docs: links, the reference, the site in build/site"
	$(BIN)/python docs/check.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

mutants: .venv/installed-dev
	@echo "== mutants: small wrong changes in certificates, verdicts, scoring and bounds"
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutants.py --jobs 2

bench: .venv/installed
	@echo "== bench: Gram matrix, layerwise against stacked per-sample gradients"
	$(BIN)/python benchmarks/gram.py

.venv/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "expected Python 3.11 or newer, got $$($(PYTHON) --version); set PYTHON=python3.12"; exit 2; }
	@echo "== making .venv with $$($(PYTHON) --version)"
	$(PYTHON) -m venv .venv
	@touch $@

.venv/installed: .venv/python pyproject.toml
	@echo "== installing remnant and what it needs (a few minutes the first time)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

.venv/installed-dev: .venv/python pyproject.toml
	@echo "== installing remnant with its test tools (a few minutes the first time)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ .venv/installed

.venv/installed-docs: .venv/python pyproject.toml
	@echo "== installing remnant with what builds its docs"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@ .venv/installed

clean:
	rm -rf .venv build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
