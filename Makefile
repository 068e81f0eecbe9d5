# `make demo` and `make test` do all the set-up that they need.
PYTHON ?= python3
BIN := .venv/bin
# A process that compiles its modules anew at every start takes a third longer to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test soak check format

install: .venv/installed

# Installed again only when what is to be installed has changed.
.venv/installed: pyproject.toml constraints.txt
	@echo "Installing into .venv (about two minutes the first time) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt "pip>=25.1"
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --group dev --editable ".[agent,control,local]"
	@touch $@

demo: install
	@$(BIN)/python examples/gpt/demo.py

# Two at a time: whole runs wait more than they compute.
test: install
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile

# What takes too long for every change.
soak: install
	@$(BIN)/python -m pytest -m soak
	@$(BIN)/python -m tests.soak.incidents 500

check: install
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/pyright
	@$(BIN)/lint-imports

format: install
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
