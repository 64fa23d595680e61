# `make demo` and `make test` set themselves up: nothing but Python 3.11 and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Flower needs older versions of protobuf and packaging than the rest.
FLOWER := .venv-flower

# The site needs neither torch nor fedkin: it reads the sources.
DOCS := .venv-docs

.PHONY: demo demo-network test coverage test-flower lint format docs wheel-test test-all clean

# Where it is set, every process that a test starts compiles the package anew.
unexport PYTHONDONTWRITEBYTECODE

PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LOCKED := $(PIP) --require-hashes --no-deps
FLOWER_PIP := $(FLOWER)/bin/python -m pip install --quiet --disable-pip-version-check
FLOWER_LOCKED := $(FLOWER_PIP) --require-hashes --no-deps

# An environment that was moved, or made by an older Python, is made anew.
ifneq ($(shell $(BIN)/python -c 'import sys; print(sys.version_info >= (3, 11))' 2>/dev/null),True)
.PHONY: $(VENV)/.installed
endif
NEW_ENOUGH := import sys; sys.exit(sys.version_info < (3, 11) and "fedkin needs Python 3.11 or newer, and this is %s: make PYTHON=python3.11 demo" % sys.version.split()[0])

# pip takes only files whose hashes are in the constraints, and fedkin is built by what they name. torch for processors is
# the first choice; where there is none, the one on PyPI, with the packages for GPUs that it names by exact versions.
$(VENV)/.installed: pyproject.toml constraints.txt constraints/cpu.txt constraints/torch.txt constraints/network.txt
	@$(PYTHON) -c '$(NEW_ENOUGH)'
	$(PYTHON) -m venv --clear $(VENV)
	$(LOCKED) -r constraints.txt
	$(LOCKED) -r constraints/cpu.txt 2>/dev/null || ($(LOCKED) -r constraints/torch.txt && $(PIP) torch==2.13.0)
	$(LOCKED) -r constraints/network.txt
	$(PIP) --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check --disable-pip-version-check
	touch $@

$(FLOWER)/.installed: pyproject.toml constraints/flower.txt constraints/cpu.txt constraints/torch.txt
	$(PYTHON) -m venv $(FLOWER)
	$(FLOWER_LOCKED) -r constraints/flower.txt
	$(FLOWER_LOCKED) -r constraints/cpu.txt 2>/dev/null || ($(FLOWER_LOCKED) -r constraints/torch.txt && $(FLOWER_PIP) torch==2.13.0)
	$(FLOWER_PIP) --no-deps --no-build-isolation -e .
	$(FLOWER)/bin/python -m pip check --disable-pip-version-check
	touch $@

demo: $(VENV)/.installed
	$(BIN)/fedkin compare presets/digits-rotated.toml --methods local,fedavg,flt-same,kin,sfmtl-graph,tfl,mapl

# A server and four clients, each a process with its own key and samples, over TLS on this machine.
demo-network: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/network.py

test: lint
	$(BIN)/python -m pytest -n 2 -m "not slow"

# Which lines the fast tests run, and which not; no number is asked for. What a test runs in another process is not seen.
coverage: $(VENV)/.installed
	$(LOCKED) -r constraints/coverage.txt
	$(BIN)/python -m pytest -n 2 -m "not slow" --cov=fedkin --cov-report=term

# A SuperLink, SuperNodes and what holds their samples, as processes on this machine.
test-flower: $(FLOWER)/.installed
	OMP_NUM_THREADS=1 $(FLOWER)/bin/python -m pytest -m slow tests/network/flower tests/data/scenarios/test_flower.py

# The sdist and the wheel made from it, tried where there is no source; .ci/wheel --fresh installs what they need anew.
wheel-test: $(VENV)/.installed
	.ci/wheel

# All that can be tried on this machine: .ci/run, whether the extras resolve, and the lowest and newest versions of all
# packages with each Python that is here or can be fetched; what cannot be tried says so (status 77).
test-all:
	.ci/run
	.ci/extras || [ $$? = 77 ]
	for version in lowest 3.11 3.12 3.13; do .ci/versions $$version || [ $$? = 77 ] || exit 1; done

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(DOCS)/.installed: constraints/docs.txt
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r constraints/docs.txt
	touch $@

# Nothing is fetched but these packages; a link or a name that leads nowhere fails.
docs: $(DOCS)/.installed
	NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --quiet
	@echo "site: site/index.html (for its search: python3 -m http.server -d site)"

clean:
	rm -rf $(VENV) $(FLOWER) $(DOCS) site .import_linter_cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage
