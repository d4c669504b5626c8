# Every target sets itself up: a virtual environment with the tested versions, made once.
PYTHON ?= python3
VENV ?= .venv
WORKERS ?= auto
CASES ?= 0:1000

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup demo test test-slow sanitize lint format wheel clean

venv := $(abspath $(VENV))
bin := $(venv)/bin
ready := $(venv)/.ready

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1	/' | expand -t 20

setup: $(ready)  ## the virtual environment, as every other target makes it

$(ready): pyproject.toml constraints.txt $(wildcard setup.py rlgates/kernels/*.cpp rlgates/kernels/*.h)
	@$(PYTHON) -c 'import sys; sys.exit("rlgates needs Python 3.11 or newer: make PYTHON=..." if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(venv)
	$(bin)/python -m pip install -q -c constraints.txt setuptools
	$(bin)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[all,dev]'
	@touch $@

demo: $(ready)  ## train a small agent and watch what its memory is worth
	$(bin)/rlgates demo

test: $(ready)  ## the fast tests
	$(bin)/pytest -n $(WORKERS) --maxprocesses 8

test-slow: $(ready)  ## the tests that train
	$(bin)/pytest -n $(WORKERS) --maxprocesses 8 -m "slow and not gpu"

# The package is built anew, as setup.py has it, into a folder that the tests then run in. If a
# sanitizer ends them, the case that did it is the last one in build/sanitize/cases.log.
sanitizers := -fsanitize=address,undefined -fno-sanitize-recover=all

sanitize: $(ready)  ## the tests of the native code, under sanitizers; needs g++
	rm -rf build/sanitize
	CC=gcc CXX=g++ CFLAGS="$(sanitizers)" CXXFLAGS="$(sanitizers)" LDFLAGS="$(sanitizers)" \
	  $(bin)/python setup.py -q build --build-base build/sanitize/objects --build-lib build/sanitize
	cd build/sanitize && LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" \
	  ASAN_OPTIONS=detect_leaks=0 PYTHONPATH=. \
	  $(bin)/pytest -c ../../pyproject.toml --rootdir ../.. -p no:cacheprovider --capture sys \
	  --log-file cases.log --log-file-level DEBUG --random-cases $(CASES) \
	  ../../tests/test_{kernels,loops,scan,random_shapes}.py

# mypy and import-linter look at the package as it is installed, so it is assembled for them;
# the names of the files are turned back into those of the checkout.
lint: $(ready)  ## style, types, and who imports whom
	$(bin)/ruff check
	$(bin)/ruff format --check
	rm -rf build/lint
	$(bin)/python -c 'import setuptools; setuptools.setup()' -q build_py --build-lib build/lint
	cd build/lint && $(bin)/mypy --config-file ../../pyproject.toml -p rlgates | sed -E 's,^rlgates/(agents|envs|experiments)/,\1/,'
	cd build/lint && $(bin)/lint-imports --config ../../pyproject.toml --no-cache --no-logo

format: $(ready)  ## what can be put right by itself
	$(bin)/ruff check --fix
	$(bin)/ruff format

# Imported far from the checkout: -I leaves out the current folder, -S the editable installation.
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

wheel: $(ready)  ## the wheel in dist/, imported from an empty folder
	rm -rf build dist
	$(bin)/python -m build -q --wheel --no-isolation
	$(bin)/python -m zipfile -e dist/*.whl build/wheel
	@names=$$(ls build/wheel | grep -v '\.dist-info$$'); \
	[ "$$names" = rlgates ] || { echo "the wheel would install:" $$names; exit 1; }
	mkdir build/empty && cd build/empty && $(bin)/python -ISc "$$import_wheel" \
	  "$(CURDIR)/build/wheel" "$$($(bin)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"

clean:  ## away with everything that was made here
	rm -rf $(venv) build dist *.egg-info .*_cache .hypothesis
	rm -f rlgates/kernels/*.so
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
