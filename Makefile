# Every command works on a fresh checkout: it creates the virtual environment and installs what it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CORE := $(VENV)/.core
READY := $(VENV)/.ready
LEROBOT := .venv-lerobot
LEROBOT_INSTALL := $(LEROBOT)/bin/python -m pip install --quiet --disable-pip-version-check

RERUN := .venv-rerun

.PHONY: help demo test test-slow test-lerobot test-rerun fuzz check bench clean packages
.DEFAULT_GOAL := help

help:
	@echo "make demo       teach a model on part of the shipped sample, score the rest, write a report"
	@echo "make test       run the tests (about 5 minutes on two cores)"
	@echo "make test-slow  run the slow tests: kill loops, browser, README commands"
	@echo "make test-lerobot  LeRobot itself trains on what demerit writes and runs its rewards (an environment of its own, 1.8 GB)"
	@echo "make test-rerun  Rerun itself verifies what demerit writes (an environment of its own, 1.1 GB)"
	@echo "make fuzz       run the property tests with random examples; new failures become explicit examples"
	@echo "make check      style, types and import direction"
	@echo "make bench      run every benchmark in full (minutes to hours; some need a GPU)"
	@echo "make clean      remove the virtual environment and the demo"

demo: $(CORE)
	@echo "Teaching and scoring the sample (about a minute on two cores) ..."
	@$(BIN)/demerit demo demo
	@echo
	@echo "demerit is installed in $(VENV). Call it as $(BIN)/demerit, or first: . $(BIN)/activate"

# A test process per core, each with one thread, and one more for the fast tests, which also wait.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n auto --dist loadfile --max-worker-restart 0

test: $(READY) packages
	PYTEST_XDIST_AUTO_NUM_WORKERS=$$(($$(getconf _NPROCESSORS_ONLN) + 1)) $(PYTEST) -m "not slow" $(TESTS)

test-slow: $(READY) packages
	$(PYTEST) -m slow $(TESTS)

test-lerobot: $(LEROBOT)/.ready
	OMP_NUM_THREADS=1 $(LEROBOT)/bin/python -W ignore -m pytest -q -n 0 --noconftest -W default tests/lerobot $(TESTS)

test-rerun: $(RERUN)/.ready
	OMP_NUM_THREADS=1 $(RERUN)/bin/python -m pytest -q -n 0 tests/rerun $(TESTS)

fuzz: $(READY)
	DEMERIT_TEST_PROFILE=fuzz $(PYTEST) -m "not slow" $$(grep -rl "from hypothesis" tests --include='test_*.py')

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_structure.py

bench: $(READY)
	for script in benchmarks/[a-z]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

# Programs that some tests need and pip cannot install. Without root, the line to run is printed and those tests skip.
PACKAGES := chromium libegl1 libopengl0 libgl1-mesa-dri postgresql

packages:
	@missing=""; for name in $(PACKAGES); do dpkg -s $$name >/dev/null 2>&1 || missing="$$missing $$name"; done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing$$missing"; apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing >/dev/null || true; \
	else echo "some tests will skip; to run them all: sudo apt-get install$$missing"; fi

# The environment is rebuilt when its inputs change. The demo needs only the core install.
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(0 if (3, 11) <= v <= (3, 13) else "demerit needs Python 3.11 to 3.13, and this is %d.%d. Try: make PYTHON=python3.12" % v)'
	@echo "Creating the virtual environment $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)
	@echo "Installing demerit and what it needs, a minute or two (no torch, no CUDA) ..."
	@$(INSTALL) -e .
	@touch $(CORE)

# torch is installed first: an unpinned torch would download gigabytes of CUDA packages.
$(READY): $(CORE)
	@echo "Installing torch and everything that the tests need, some minutes ..."
	@$(INSTALL) torch==2.13.0
	@$(INSTALL) -e '.[dev]'
	@touch $(READY)

# LeRobot's own ranges, but for torch. Without --no-deps, torchvision and lerobot pull gigabytes of CUDA.
$(LEROBOT)/.ready: pyproject.toml
	$(PYTHON) -m venv $(LEROBOT)
	$(LEROBOT_INSTALL) torch==2.13.0
	$(LEROBOT_INSTALL) numpy==2.2.6 datasets==4.8.5 huggingface_hub==0.35.3 'pandas<3' av==15.1.0 'pillow<13' \
	  'packaging<26' draccus==0.10.0 'accelerate>=1.10,<2' jsonlines einops termcolor imageio pyserial deepdiff \
	  'gymnasium<2' diffusers==0.35.2 'opencv-python-headless<4.13' grpcio==1.73.1 'protobuf<6.32'
	$(LEROBOT_INSTALL) --no-deps lerobot==0.4.4 torchvision==0.25.0
	$(LEROBOT_INSTALL) -e . pytest pytest-timeout pytest-xdist
	touch $@

# Rerun's first run asks about analytics and the next may hang.
$(RERUN)/.ready: pyproject.toml
	$(PYTHON) -m venv $(RERUN)
	$(RERUN)/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[rerun]' hypothesis \
	  pytest pytest-timeout pytest-xdist
	$(RERUN)/bin/rerun analytics disable
	touch $@

clean:
	rm -rf $(VENV) $(LEROBOT) $(RERUN) demo
