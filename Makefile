# Everything is a target here, and CI runs the same ones; `make` alone lists them.
# `make run` and `make test` do all set-up themselves, once, into .venv and build; nothing needs root.
#
#   ARGS=…                what run passes to gnatswarm, and test, debug, bench and fuzz to pytest
#   PYTHON=… CC=…         another interpreter (3.11 or newer), another compiler
#   WORKERS=2             processes the tests run in; 0: in this one, for a debugger
#   EXTRAS=test,dev,loadtest,spark   optional dependencies that are installed
#   FUZZ_S=60             seconds for each fuzzer
#   GNATSWARM_NATIVE=1    compile for this machine's processor alone

VENV := .venv
PY := $(VENV)/bin/python
ARGS ?=
PYTHON ?=
WORKERS ?= 2
EXTRAS ?= test,dev,loadtest,spark
FUZZ_S ?= 60

export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP_INSTALL = $(PY) -m pip install -qq --progress-bar off --constraint constraints.txt
# -P: the packages are found as a user's process finds them, not because they happen to lie in the current directory.
PYTEST = $(PY) -P -m pytest

PACKAGES := broker shards router loadtest spark
COMPILED_SOURCES := $(shell find broker shards loadtest -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
# cython-lint fails when it is given nothing to read, and calls pycodestyle by its name alone.
CYTHON_SOURCES := $(filter %.pyx %.pxd,$(COMPILED_SOURCES))

.DEFAULT_GOAL := help
.PHONY: help run test clients reference demo build debug lint format bench fuzz clean FORCE
FORCE:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

run: build ## start the broker, on port 4222 unless ARGS says otherwise
	@exec $(VENV)/bin/gnatswarm $(ARGS)

test: build ## run the tests
	@$(PYTEST) -n $(WORKERS) --dist worksteal $(ARGS)

# Python writes byte code by itself only where PYTHONDONTWRITEBYTECODE is not set, as it is in many containers; without
# it a broker's start takes half as long again.
build: build/.built ## set up .venv and compile what changed
	@$(PY) -m compileall -q $(PACKAGES) *.py

reference: build ## write deploy/CONFIGURATION.md and the tables of deploy/CAPACITY.md anew
	@PYTHONPATH=. $(PY) -P deploy/reference.py && $(PY) -P deploy/capacity.py

clients: ## official NATS clients for Node, which tests/clients runs (npm)
	@mkdir -p build/clients && cp tests/clients/package.json build/clients/
	@npm install --prefix build/clients --no-package-lock --no-audit --no-fund --loglevel=error

demo: build ## several shards, a workload, and what Spark says about it: build/demo/report.html
	@$(PY) -P deploy/demo/demo.py $(ARGS)

lint: $(VENV)/.installed ## ruff, mypy --strict, cython-lint
	@echo "ruff …" && $(PY) -m ruff check . && $(PY) -m ruff format --check .
	@echo "mypy …" && $(PY) -m mypy .
ifneq ($(CYTHON_SOURCES),)
	@echo "cython-lint …" && PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cython-lint $(CYTHON_SOURCES)
endif

format: $(VENV)/.installed ## let ruff lay out the Python files
	@$(PY) -m ruff check --fix-only . && $(PY) -m ruff format .

bench: build ## measure: tests/bench
	@$(PYTEST) -n 0 -s --timeout 900 tests/bench $(ARGS)

fuzz: build ## feed the parsers nonsense for FUZZ_S seconds each: tests/fuzz
	@GNATSWARM_FUZZ_S=$(FUZZ_S) $(PYTEST) -n $(WORKERS) --timeout $$(( $(FUZZ_S) * 2 + 60 )) tests/fuzz $(ARGS)

# The debug build lives in build/debug/lib and is found first through PYTHONPATH, by the tests and by every process they
# start; the release build stays what it is. PYTHONMALLOC=malloc: ASan sees every object. Python itself leaks by design.
# Reports go to files, because a shard's would be lost with its standard error, and a shard that died would be restarted.
DEBUG_LIB := build/debug/lib
REPORTS := $(CURDIR)/build/debug/report
debug: $(VENV)/.installed ## assertions, AddressSanitizer and UBSan on: build apart, and run the tests
	@PYTHON=$(PY) .ci/prerequisites sanitizers >/dev/null
	@echo "[3/3] compiled modules, with assertions and sanitizers …"
	@mkdir -p $(DEBUG_LIB) && find $(DEBUG_LIB) -type f ! -name '*.so' -delete && rm -f "$(REPORTS)".*
	@GNATSWARM_DEBUG=1 $(PY) setup.py --quiet build --build-base build/debug --build-lib $(DEBUG_LIB)
	@cc=$${CC:-$$($(PY) -c 'import sysconfig; print(sysconfig.get_config_var("CC"))')}; status=0; \
	PYTHONPATH="$(CURDIR)/$(DEBUG_LIB)" PYTHONMALLOC=malloc \
	ASAN_OPTIONS="detect_leaks=0:abort_on_error=1:log_path=$(REPORTS)" \
	UBSAN_OPTIONS="print_stacktrace=1:log_path=$(REPORTS)" \
	LD_PRELOAD="$$($$cc -print-file-name=libasan.so)" \
	$(PYTEST) -n $(WORKERS) --dist worksteal --timeout 300 $(ARGS) || status=$$?; \
	for report in "$(REPORTS)".*; do \
		if [ -e "$$report" ]; then cat "$$report"; echo "sanitizer report: $$report"; status=1; fi; \
	done; exit $$status

clean: ## remove what was built (.venv stays)
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find broker shards loadtest -name '*.so' -delete
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# Set-up. Each step leaves a stamp, and is done again when what it was made from changed.

$(VENV)/.created:
	@python=$$(PYTHON='$(PYTHON)' .ci/prerequisites) && \
	echo "[1/3] virtual environment …" && \
	"$$python" -m venv $(VENV) && touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml setup.py constraints.txt $(VENV)/.extras
	@echo "[2/3] packages …"
	@$(PIP_INSTALL) setuptools cython
	@GNATSWARM_SKIP_EXTENSIONS=1 $(PIP_INSTALL) --no-build-isolation --editable '.[$(EXTRAS)]'
	@touch $@

build/.built: $(VENV)/.installed $(COMPILED_SOURCES) build/.flags
	@PYTHON=$(PY) .ci/prerequisites >/dev/null
	@echo "[3/3] compiled modules …"
	@$(PY) setup.py --quiet build_ext --inplace
	@touch $@

# A file that changes only when a setting does.
$(VENV)/.extras: FORCE | $(VENV)/.created
	@echo '$(EXTRAS)' | cmp -s - $@ || echo '$(EXTRAS)' > $@

build/.flags: FORCE
	@mkdir -p build
	@echo '$(GNATSWARM_NATIVE)' | cmp -s - $@ || echo '$(GNATSWARM_NATIVE)' > $@
