# Everything is run from a virtual environment of our own; PYTHON makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# What chaos takes, as in: make chaos CHAOS="--messages 500000 --faults 200 --seed 1"
CHAOS ?=
INSTALLED := $(VENV)/installed

.PHONY: run test lint format bench chaos docs clean

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	touch $@

# Another PRESSURE_LISTEN in the environment goes before this one.
run: export PRESSURE_LISTEN ?= resp://127.0.0.1:4000 memcached://127.0.0.1:11211
run: $(INSTALLED)
	exec $(BIN)/pressure-server serve

test: $(INSTALLED)
	$(BIN)/pytest

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(INSTALLED)
	$(BIN)/python -m benchmarks

chaos: $(INSTALLED)
	$(BIN)/python -m tests.chaos $(CHAOS)

docs: $(INSTALLED)
	$(BIN)/python -m handlers.resp docs/commands.md
	$(BIN)/python -m handlers.memcached docs/memcached.md

clean:
	rm -rf $(VENV) build dist *.egg-info
