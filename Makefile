# Everything a developer or a user does, each from a fresh checkout: `make demo` and `make test` set themselves up.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
READY := $(VENV)/.ready

.PHONY: help demo test check bench clean
.DEFAULT_GOAL := help

help:
	@echo "make demo    teach a model on part of the sample that ships, judge the rest, write a report"
	@echo "make test    set up and run every test"
	@echo "make check   style, types and layers"
	@echo "make bench   every benchmark (minutes)"
	@echo "make clean   remove the virtual environment and the demo"

demo: $(CORE)
	$(BIN)/demerit demo demo

# One test process a core, each with one thread: more of either only get in each other's way. A test that takes its
# process with it is tried again by the next one, and would be for ever.
test: $(READY) packages
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadfile --max-worker-restart 2 $(TESTS)

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_structure.py

bench: $(READY)
	for each in benchmarks/*.py; do echo "== $$each"; $(BIN)/python $$each || exit 1; done

# Programs that some tests need and pip cannot bring. Missing ones are installed where we may; otherwise the line to run
# is printed and the tests that need them skip, saying so.
PACKAGES := chromium libegl1 libopengl0 libgl1-mesa-dri

.PHONY: packages
packages:
	@missing=""; for each in $(PACKAGES); do dpkg -s $$each >/dev/null 2>&1 || missing="$$missing $$each"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing$$missing"; apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing >/dev/null || true; \
	else echo "some tests will skip; to run them all: sudo apt-get install$$missing"; fi

# The environment is made anew whenever what it is made from changes. The demo needs the core alone.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "demerit needs Python 3.11 to 3.13, and this is %d.%d. Try: make PYTHON=python3.12" % v)'
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -e .
	touch $(CORE)

# torch comes first and alone: an unpinned one would bring gigabytes of CUDA
$(READY): $(CORE)
	$(INSTALL) torch==2.13.0
	$(INSTALL) -e '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) demo
