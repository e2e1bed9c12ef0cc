# Every target sets itself up from a fresh clone: Python >= 3.11 and make are enough.
#
#   PYTHON=python3.12 make test     use this interpreter for .venv
#   ARGS="-k tape -x" make test     hand more arguments to pytest

PYTHON ?= python3 python3.15 python3.14 python3.13 python3.12 python3.11
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# PyTorch and JAX have an environment of their own on top of .venv: `make test` is the same with and without.
BRIDGES := $(VENV)/bridges
# So has MkDocs, with a folder for what it makes.
DOCS := $(VENV)/docs
SITE := build/site
ARGS ?=
# A machine with a GPU may have no network to make .venv with.
ANY_PYTHON = $(if $(wildcard $(READY)),$(BIN)/python,python3)
# Files of tests side by side, on up to four cores; ARGS="-n 0" runs them one after the other, as --pdb needs.
# They begin in the order of tests/conftest.py.
TOGETHER := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# What is not about the host's own code.
ON_GPU := -p no:cacheprovider tests/ad tests/cuda tests/errors tests/examples tests/lang tests/runtime

.DELETE_ON_ERROR:
.PHONY: help setup test test-bridges bridges fuzz soak test-gpu bench-gpu demo gallery docs docs-tools check \
    format bench clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

setup: $(READY) ## Make .venv with diffsim and the development tools (the others do it by themselves)

test: $(READY) ## Run the tests
	@$(BIN)/python -m pytest $(TOGETHER) $(ARGS)

test-bridges: $(BRIDGES)/.ready ## Install PyTorch and JAX for the CPU (1.5 GB), and run the tests that need them
	@$(BRIDGES)/bin/python -m pytest -n 0 tests/bridges tests/examples/test_learned_controller.py \
	    tests/docs/test_docs.py -k 'bridges or controller' $(ARGS)

bridges: $(BRIDGES)/.ready # what test-bridges needs, without the tests

fuzz: $(READY) ## Look for programs with wrong gradients (ARGS="--minutes 60")
	@$(BIN)/python -m tests.fuzz $(ARGS)

soak: $(READY) ## Kill programs, fill disks, take memory away for five minutes (ARGS="--seconds 3600")
	@$(BIN)/python -m tests.soak $(ARGS)

test-gpu: ## Run the tests on an NVIDIA GPU (with .venv if it is there, else with python3 and what it has)
	@DIFFSIM_TEST_ARCH=cuda $(ANY_PYTHON) -m pytest $(ON_GPU) -m 'not memory' $(ARGS) \
	    `$(ANY_PYTHON) -c 'import xdist; print("-n 8")' 2>/dev/null`
	@DIFFSIM_TEST_ARCH=cuda $(ANY_PYTHON) -m pytest $(ON_GPU) -m memory $(ARGS)

bench-gpu: ## Run the benchmarks on an NVIDIA GPU (likewise)
	@PYTHONPATH=.$${PYTHONPATH:+:$$PYTHONPATH} $(ANY_PYTHON) benchmarks/gpu/run.py $(ARGS)

demo: $(READY) ## Run the mass-spring example without a window and say where its pictures are
	@mkdir -p out && touch out/.demo
	@MPLBACKEND=Agg $(BIN)/python examples/mass_spring.py
	@echo "Pictures:"
	@find . -name '.?*' -prune -o -type f -newer out/.demo \
	    \( -name '*.png' -o -name '*.gif' -o -name '*.mp4' \) -print | sort | sed 's/^/  /'

gallery: $(READY) ## Run all examples without a window, for their pages (long; ARGS="wave cloth" for some)
	@MPLBACKEND=Agg $(BIN)/python tools/website/run_examples.py $(ARGS)

docs: docs-tools ## Make the documentation's site, with the pages of examples that were run
	@$(BIN)/python tools/website/write.py $(SITE)
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs build -q -f $(SITE)/mkdocs.yml
	@echo "The site: $(SITE)/html/index.html"

docs-tools: $(DOCS)/.ready # what docs needs, without the site

check: $(READY) ## Lint, check the formatting and the types
	@$(BIN)/python -m ruff check -q
	@$(BIN)/python -m ruff format -q --check
	@$(BIN)/python -m mypy --no-error-summary

format: $(READY) ## Format the code and fix what ruff can fix safely
	@$(BIN)/python -m ruff check -q --fix --exit-zero
	@$(BIN)/python -m ruff format -q

bench: $(READY) ## Run the benchmarks
	@$(BIN)/python benchmarks/run.py $(ARGS)

clean: ## Remove .venv and everything else that was made here
	@rm -rf $(VENV) .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist out examples/output
	@find . -name .git -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

# An environment on top of .venv, named as its dependency group. .venv may be a link in a copy that goes, as in .ci/run.
$(VENV)/bridges/.ready $(VENV)/docs/.ready: $(VENV)/%/.ready: $(READY)
	@echo "Installing $* into $(VENV)/$*"
	@$(BIN)/python -m venv --clear --without-pip $(VENV)/$*
	@$(BIN)/python -c 'import os, sysconfig; print(os.path.realpath(sysconfig.get_path("purelib")))' \
	    > `$(VENV)/$*/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'`/below.pth
	@$(BIN)/python -m pip --disable-pip-version-check --python $(VENV)/$*/bin/python install -q --group $*
	@touch $@

# An interpreter is tried by running it: a name on the path may be only a launcher for nothing.
$(READY): pyproject.toml
	@set -e; \
	case $$PWD in *:*) \
	  echo "make: Python makes no .venv in a folder with a colon in its path, and this is $$PWD." >&2; \
	  echo "    Hint: give the folder another name, or move it." >&2; \
	  exit 1;; \
	esac; \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  python=; old=; bare=; \
	  for candidate in $(PYTHON); do \
	    version=`$$candidate -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null` || continue; \
	    if ! $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then \
	      old="$$old $$candidate ($$version)"; \
	    elif ! $$candidate -c 'import ensurepip, venv' >/dev/null 2>&1; then \
	      bare="$$bare python$$version-venv"; \
	    else \
	      python=$$candidate; break; \
	    fi; \
	  done; \
	  if [ -z "$$python" ] && [ -n "$$bare" ]; then \
	    echo "make: this Python comes without venv and ensurepip. On Debian or Ubuntu, one of these brings them:" >&2; \
	    for package in $$bare; do echo "    apt install $$package" >&2; done; \
	    exit 1; \
	  elif [ -z "$$python" ]; then \
	    echo "make: diffsim needs Python 3.11 or newer. Tried: $(PYTHON). Too old:$${old:- none, nothing runs}." >&2; \
	    echo "    Name another one like this: make PYTHON=/path/to/python3.12 ..." >&2; \
	    exit 1; \
	  fi; \
	  echo "Making $(VENV) with $$python (once)"; \
	  $$python -m venv --clear $(VENV); \
	fi; \
	pip="$(BIN)/python -m pip --disable-pip-version-check -q"; \
	if ! $(BIN)/python -m pip install --help | grep -e --group >/dev/null; then \
	  $$pip install --upgrade 'pip>=25.1'; \
	fi; \
	echo "Installing diffsim and the development tools into $(VENV)"; \
	$$pip install -e . --group dev; \
	touch $(READY)
