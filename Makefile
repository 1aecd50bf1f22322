# make demo   a training run from nothing: environment, servers, run, table
# make test   linters, types and every test, by WORKERS=2 processes
# make clean  remove the environment and the caches, not the results
PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test install install-dev format clean
.DEFAULT_GOAL := demo

demo: install
	$(BIN)/solrl demo

test: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=$${OMP_NUM_THREADS:-1} $(BIN)/python -m pytest --numprocesses $(WORKERS)

format: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or newer is needed, found: $$($(PYTHON) --version 2>&1). Name one: make PYTHON=python3.12"; exit 1; }
	$(PYTHON) -m venv $(VENV)

# The stamps say that what these two files ask for is installed. The developer's set holds the user's.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV): about 2 GB, some minutes the first time."
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e .
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing into $(VENV): about 2 GB, some minutes the first time."
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(VENV)/.installed $@

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
