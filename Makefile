# Every target sets up what it needs in .venv; nothing has to be installed by hand.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Tests that need none of the heavy extras.
PURE := tests/base tests/core tests/drivers tests/network tests/runtime tests/theory
# Tests wait for processes, sockets and browsers about a third of the time: one more process than cores.
WORKERS := $(shell expr $$(nproc 2>/dev/null || echo 2) + 1)
PYTEST := $(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test check coverage docs lint fuzz faults mutants bench pythons format lock clean

help: ## What there is
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

$(VENV)/.installed: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-dev: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[dev]'
	@touch $@ $(VENV)/.installed

$(VENV)/.installed-docs: $(BIN)/python pyproject.toml constraints.txt
	$(INSTALL) --editable '.[dev,docs]'
	@touch $@ $(VENV)/.installed-dev $(VENV)/.installed

demo: $(VENV)/.installed ## EF-HC, its baselines and a strategy of ours: a minute or two; the first run also compiles
	$(BIN)/efhc demo

test: $(VENV)/.installed-dev ## The tests but the slow ones: seven minutes on two cores
	HYPOTHESIS_PROFILE=quick $(PYTEST) -m 'not slow'

check: $(VENV)/.installed-docs lint ## Lint, types, import contract, all tests, the site
	$(PYTEST)

coverage: $(VENV)/.installed-docs ## All tests with branch coverage, which takes half as long again
	$(PYTEST) --cov --cov-report=term

docs: $(VENV)/.installed-docs ## The site, in site/: built offline, every link and anchor checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html; with search: $(BIN)/python -m http.server --bind 127.0.0.1 --directory site"

lint: $(VENV)/.installed-dev ## Lint, types and import contract only
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fuzz: $(VENV)/.installed-dev ## 10,000 hostile schedules of each link law, 100,000 hostile streams
	EFHC_SCHEDULES=10000 $(BIN)/python -m pytest --numprocesses 2 tests/core/device/test_device_laws.py tests/core/half_steps/test_half_steps_laws.py -k no_schedule
	EFHC_FRAMES=$(or $(FRAMES),100000) $(BIN)/python -m pytest --numprocesses 2 tests/runtime/test_wire_fuzz.py -k no_stream

faults: $(VENV)/.installed-dev ## Break the network under real nodes, as root: all counts, or FAULTS=tenth or few
	EFHC_FAULTS=$(or $(FAULTS),all) $(BIN)/python -m pytest --numprocesses 3 --dist worksteal tests/faults $(if $(FAULTS),,tests/conformance/test_nodes_agree.py)

mutants: $(VENV)/.installed-dev ## Break one law at a time: does a test notice?
	$(BIN)/python tests/mutants/run.py $(MUTANTS)

bench: $(VENV)/.installed-dev ## How fast it is, against a plain loop; ARGS="e2e --against DIR" or ARGS=--help for more
	$(BIN)/python -m benchmarks $(ARGS)

pythons: ## The quick tests, but for those of neural networks, with Python 3.12 and 3.13 where they are
	@for version in 3.12 3.13; do \
	  python=$$(pyenv prefix "$$(pyenv latest $$version)" 2>/dev/null)/bin/python; \
	  [ -x "$$python" ] || python=$$(command -v python$$version) || { echo "there is no Python $$version here"; continue; }; \
	  "$$python" -m venv build/python$$version && \
	  build/python$$version/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[node,tune,watch,tensorboard]' \
	    pytest pytest-xdist hypothesis httpx && \
	  HYPOTHESIS_PROFILE=quick build/python$$version/bin/python -m pytest -m 'not slow' $(PURE) || exit 1; \
	done

format: $(VENV)/.installed-dev ## Put the code into its standard form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lock: ## Write constraints.txt anew, with today's newest versions
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install --quiet '.[dev,docs]'
	{ sed '/^[^#]/,$$d' constraints.txt; build/lock/bin/python -m pip freeze --exclude efhc | sed 's/+cpu$$//'; } > build/constraints.txt
	mv build/constraints.txt constraints.txt && rm -rf build

clean: ## Remove .venv and caches
	rm -rf $(VENV) build site .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
