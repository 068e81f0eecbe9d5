# `make demo` and `make test` do all the set-up that they need.
PYTHON ?= python3
BIN := .venv/bin
# A process that compiles its modules anew at every start takes a third longer to start.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: install demo test soak check check-deploy format

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
	@$(BIN)/python -m pytest --numprocesses 2 --dist worksteal

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

# What is deployed: overlays, manifests of jobs, Dockerfile. `deploy/check-image.sh` builds the images.
check-deploy: install
	@command -v kubectl > /dev/null || test -x $(BIN)/kubectl || PYTHON=$(BIN)/python deploy/kubectl.sh $(BIN)
	@$(BIN)/python -m pytest tests/contract/test_manifests.py
	@echo "deploy/ is well-formed, of one source, and in step with the code that it starts."
	@echo "NOT shown, for want of a cluster: that an API server admits it (JobSet and PodMonitor have no"
	@echo "schema here), that roles suffice on a real one, that images build on their real bases, that"
	@echo "pods are scheduled, and that a network plugin keeps the policies."

format: install
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .
