# Two commands do all the set-up: `make demo` to see it, `make test` to work on it.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test lint slow golden fuzz bench docs clean
.DELETE_ON_ERROR:

demo: $(VENV)/.user
	$(BIN)/nacre demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell --builtin en-GB_to_en-US src docs README.md CONTRIBUTING.md
	$(BIN)/mypy

slow: $(VENV)/.dev
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'slow and not nightly'

golden: $(VENV)/.dev
	$(BIN)/python tests/golden.py $(if $(BASE),--base $(BASE))

fuzz: $(VENV)/.dev
	NACRE_FUZZ=20 $(BIN)/python -m pytest tests/fuzz -s --timeout 7200

bench: $(VENV)/.dev
	$(BIN)/python benchmarks

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "the site: site/index.html"

$(VENV)/.made:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "nacre needs Python 3.11 or newer; try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.user: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e .
	touch $@

$(VENV)/.dev: $(VENV)/.made pyproject.toml constraints.txt tests/foreign-packages.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --upgrade \
	  --target $(VENV)/foreign -r tests/foreign-packages.txt
	touch $@ $(VENV)/.user

$(VENV)/.docs: $(VENV)/.made pyproject.toml constraints.txt
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) site
