# Targets that need it first create a virtual environment with the tested versions, once.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= auto
CASES ?= 0:1000
FAULTS ?= 40

# Whoever sets it would have every process compile all packages again: a command starts in 7 s, not 2.
unexport PYTHONDONTWRITEBYTECODE

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test test-quick test-slow test-faults sanitize lint format docs wheel clean

venv := $(abspath $(VENV))
bin := $(venv)/bin
ready := $(venv)/.ready
demo := $(venv)/.demo
sources := pyproject.toml constraints.txt setup.py rlgates/kernels/layout.py \
  $(wildcard $(addprefix rlgates/kernels/cpu/csrc/,*.cpp *.h */*.h))

help:  ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1	/' | expand -t 20

setup: $(ready)  ## create the virtual environment, as other targets do that need it

# The demo needs a third of the packages. Bytecode is compiled of what is imported.
$(demo): $(sources)
	@$(PYTHON) -c 'import sys; sys.exit("rlgates needs Python 3.11 or newer: make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(venv)
	$(bin)/python -m pip install -q -c constraints.txt setuptools
	$(bin)/python -m pip install -q --no-compile -c constraints.txt --no-build-isolation -e '.[experiments]'
	@touch $@

$(ready): $(demo)
	$(bin)/python -m pip install -q --no-compile -c constraints.txt 'rlgates[all,dev]'
	@touch $@

demo: $(demo)  ## train a small agent and see what its memory is worth
	$(bin)/rlgates demo

test: $(ready)  ## all tests but those that train for minutes
	$(bin)/pytest -n $(WORKERS) --maxprocesses 8 --timeout 900 --durations 20

test-quick: $(ready)  ## the core of them, in under a minute on two idle cores
	$(bin)/pytest -n $(WORKERS) --maxprocesses 8 --quick

test-slow: $(ready)  ## the tests that train
	$(bin)/pytest -n $(WORKERS) --maxprocesses 8 -m "slow and not gpu"

test-faults: $(ready)  ## kill, damage and fill up, FAULTS times as often as in make test, at random
	$(bin)/pytest -n $(WORKERS) --maxprocesses 8 -m "not gpu" --faults $(FAULTS) --random-cases $(CASES) --hypothesis-profile nightly \
	  tests/integration/test_{faults,damaged_files,resume,growth}.py tests/unit/agents/test_hostile_files.py

# setup.py builds the package again, into a folder that the tests then run in. If a sanitizer aborts
# them, the failing case is the last one in build/sanitize/cases.log.
sanitizers := -fsanitize=address,undefined -fno-sanitize-recover=all

sanitize: $(ready)  ## test the native code under sanitizers; needs g++
	rm -rf build/sanitize
	CC=gcc CXX=g++ CFLAGS="$(sanitizers)" CXXFLAGS="$(sanitizers)" LDFLAGS="$(sanitizers)" \
	  $(bin)/python setup.py -q build --build-base build/sanitize/objects --build-lib build/sanitize
	cd build/sanitize && LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=. \
	  $(bin)/pytest -c ../../pyproject.toml --rootdir ../.. -p no:cacheprovider --capture sys \
	  --log-file cases.log --log-file-level DEBUG --random-cases $(CASES) \
	  ../../tests/unit/kernels/test_{cells,layers,minimal,dnc,scan,channels,memories,memory,extremes,grid,heads}.py ../../tests/unit/cores/test_random_shapes.py

lint: $(ready)  ## check style, types and imports between the folders
	$(bin)/ruff check
	$(bin)/ruff format --check
	$(bin)/mypy -p rlgates | sed -E 's,^rlgates/(agents|envs|experiments)/,\1/,'
	$(bin)/basedpyright --pythonpath $(bin)/python
	$(bin)/lint-imports --no-cache --no-logo

format: $(ready)  ## fix what can be fixed automatically
	$(bin)/ruff check --fix
	$(bin)/ruff format

docs: $(ready)  ## build the site in docs/_build/html; a warning is an error
	$(bin)/python docs/generate.py
	$(bin)/python -m sphinx -j auto -q -W --keep-going -b html docs docs/_build/html

# Imported outside the checkout: -I leaves out the current folder, -S the editable installation.
define import_wheel
import sys
wheel, dependencies = sys.argv[1:]
sys.path[:0] = [wheel, dependencies]
import rlgates, rlgates.agents, rlgates.envs, rlgates.experiments
for name, module in sorted(sys.modules.items()):
    if name.partition(".")[0] == "rlgates" and not str(module.__file__).startswith(wheel):
        sys.exit(f"{name} was imported from {module.__file__}, not from the wheel")
print("rlgates", rlgates.__version__, "imports from its wheel")
endef
export import_wheel

wheel: $(demo)  ## build the wheel in dist/, and import it from an empty folder
	rm -rf build dist
	$(bin)/python -m pip wheel -q --no-deps --no-build-isolation -w dist .
	$(bin)/python -m zipfile -e dist/*.whl build/wheel
	@names=$$(ls build/wheel | grep -v '\.dist-info$$'); \
	[ "$$names" = rlgates ] || { echo "the wheel would install:" $$names; exit 1; }
	mkdir build/empty && cd build/empty && $(bin)/python -ISc "$$import_wheel" \
	  "$(CURDIR)/build/wheel" "$$($(bin)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

clean:  ## remove everything that make and the tests created
	rm -rf $(venv) build dist *.egg-info .*_cache .hypothesis
	rm -f rlgates/kernels/cpu/*.so
	rm -rf docs/_build docs/{api,cores,environments,gates,studies,tables,tasks}
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
