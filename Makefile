# Everything a developer or a user does, each from a fresh checkout: `make demo` and `make test` set themselves up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: help demo test check bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    draw a small dataset, import it, score it, show what came out"
	@echo "make test    set up and run every test"
	@echo "make check   style, types and layers"
	@echo "make bench   every benchmark (minutes)"
	@echo "make clean   remove the virtual environment and the demo"

demo: $(READY)
	$(BIN)/demerit demo demo

test: $(READY)
	$(BIN)/python -m pytest -q $(TESTS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_structure.py

bench: $(READY)
	for each in benchmarks/*.py; do echo "== $$each"; $(BIN)/python $$each || exit 1; done

# The environment is made anew whenever what it is made from changes.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13) and "demerit needs Python 3.11 to 3.13; this is " + sys.version.split()[0] + ". Try: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) demo
