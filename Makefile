# `make demo` and `make test` set up all they need in .venv; a second run starts at once.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-long test-slurm test-page lint docs-check zoo clean

demo: .venv/installed-all
	$(BIN)/vnd demo

# Two processes of one thread each: the tensors of the tests are small.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2

test: .venv/installed-dev lint
	$(PYTEST)

test-long: .venv/installed-dev
	$(PYTEST) -m "statistical or fault"

# `vnd sweep --slurm` on a real SLURM, one node on loopback: as root, with Debian's slurm-wlm and munge.
test-slurm: .venv/installed-dev
	$(PIP) submitit
	$(BIN)/python -m pytest -q -n 0 -m slurm tests/slurm

# The page in a real browser, its network off, and the documentation's pictures of it: with node, npm and Chromium.
test-page: .venv/installed-dev
	$(BIN)/python tests/page/browser.py

lint: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_references.py
	$(BIN)/python scripts/vocabulary.py

# Conversion of networks that people really use: of transformers, of timm and by hand. timm would bring torchvision,
# of which its models need nothing.
zoo: .venv/installed-zoo
	$(PIP) --no-deps timm
	OMP_NUM_THREADS=1 $(BIN)/python scripts/zoo.py

# Tables and figures of the documentation, made again from docs/results: a difference is an error.
docs-check: .venv/installed-dev
	$(BIN)/python scripts/docs_check.py

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "vnd needs Python 3.11 or newer; try: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv

.venv/installed-%: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing vnd and its [$*] extra into .venv (the first time takes a few minutes) ..."
	$(PIP) -e '.[$*]'
	@touch $@

clean:
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
