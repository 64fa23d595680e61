# `make demo` and `make test` set themselves up: nothing but Python 3.11 and make is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint format docs clean

# torch first and by its exact version: a range would pull the CUDA build.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(VENV)/.installed
	$(BIN)/fedkin compare presets/digits-rotated.toml --methods local,fedavg,flt,kin,sfmtl-graph,tfl,mapl

test: lint
	$(BIN)/python -m pytest -n 2 -m "not slow"

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.installed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed
	$(BIN)/pdoc --output-directory site fedkin.flow fedkin.views fedkin.federation fedkin.graph fedkin.data fedkin.methods fedkin.learning \
		fedkin.engines fedkin.running.api fedkin.running.experiment fedkin.running.settings fedkin.running.trackers \
		fedkin.running.compare fedkin.report
	@echo "reference: site/index.html"

clean:
	rm -rf $(VENV) .import_linter_cache .mypy_cache .ruff_cache .pytest_cache .hypothesis
