# `make help` lists what there is. Everything runs in a virtual environment in .venv, made on first use.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

setup: $(STAMP)  ## make the virtual environment and install everything for development

$(STAMP): pyproject.toml
	$(or $(shell command -v $(PYTHON)),python3) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -e '.[dev]'
	$(BIN)/python -m compileall -q occ compiler runtime
	touch $@

demo: $(STAMP)  ## read a picture of some text with a real model, and with onnxruntime
	$(BIN)/python docs/demo.py

test: $(STAMP)  ## the tests that take seconds or a few minutes
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not more"

# What rules of schedules decide by the machine, in tests that compile few kernels.
OTHER := numeric/test_full_tile_variants numeric/test_group_query numeric/test_half_weights numeric/test_precision \
  numeric/test_rows_in_lanes ops/test_attention ops/test_depthwise_conv ops/test_matmul_few_rows ops/test_matmul_integer \
  ops/test_pooling ops/test_transpose
test-other: $(STAMP)  ## a small part of the tests, compiled for a machine with other vectors than this one (OCC_TEST_MACHINE)
	OCC_TEST_MACHINE=$${OCC_TEST_MACHINE:-other} $(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not more" \
	  tests/unit/test_processor_of_builds.py $(OTHER:%=tests/%.py)

test-more: $(STAMP)  ## what covers the same again: large nets, more pairs of models and targets, the rest of thinned tests
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "more and not slow" \
	  $$(grep -rlE --include='test_*.py' 'pytest.mark.(more|thinned)' tests)

test-all: $(STAMP)  ## all tests, the slow ones too
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-models: $(STAMP)  ## build the models of the folders in OCC_TEST_MODELS for cpu, and compare a run of each with onnxruntime
	$(BIN)/python -m pytest -n 2 --dist worksteal tests/models/test_builds_of_models.py

lint: $(STAMP)  ## ruff, formatting, and the import contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/python tests/sizes.py

types: $(STAMP)  ## pyright, strict
	$(BIN)/pyright --pythonpath $(BIN)/python

bench: $(STAMP)  ## speed compared with onnxruntime and OpenVINO; BENCH="--models DIR" says where the models are
	$(BIN)/python bench/speed.py $(BENCH)

FIGURES ?= bench/figures/zen3.json
bench-plot: $(STAMP)  ## draw docs/assets/speed.svg from figures that `make bench BENCH="--json FILE"` wrote; FIGURES=FILE
	$(BIN)/python bench/plot.py $(FIGURES) docs/assets/speed.svg

bench-operators: $(STAMP)  ## speed of single operators compared with onnxruntime, and the page that shows it; goes on where it stopped
	$(BIN)/python bench/operators.py --json build/operators.json --page docs/reference/operator-speed.md $(BENCH)

MINUTES ?= 10
fuzz: $(STAMP)  ## random graphs on all targets, damaged files, operands that do not fit, and new examples of the property tests; MINUTES=10
	$(BIN)/python -m tools.fuzz graphs --minutes $(MINUTES)
	$(BIN)/python -m tools.fuzz files --minutes $$(($(MINUTES) / 10 + 1))
	$(BIN)/python -m tools.fuzz misfits --minutes $$(($(MINUTES) / 5 + 1))
	$(BIN)/python -m tools.fuzz large-sizes --minutes $$(($(MINUTES) / 10 + 1))
	$(BIN)/python -m pytest -n 2 --hypothesis-profile=new -m "not slow" $$(grep -rl "^from hypothesis import given" tests)

docs: $(STAMP)  ## regenerate the reference pages
	$(BIN)/python docs/reference.py

site: $(STAMP)  ## the documentation as a site in build/site, for reading without a network; other versions there stay
	@$(BIN)/python -c "import mkdocs, material, mkdocstrings" 2>/dev/null || $(BIN)/pip install -q --disable-pip-version-check -e '.[docs]'
	NO_MKDOCS_2_WARNING=1 PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m mkdocs build --strict --site-dir build/site/$$($(BIN)/python -c "import occ; print(occ.__version__)")

wheels: $(STAMP)  ## a wheel in dist that brings along compiled C++, for this kind of machine and C library
	$(BIN)/python -m tools.wheels dist

store: $(STAMP)  ## a wheel in dist with the kernels of usual networks, for machines without a C++ compiler; goes on where it stopped
	$(BIN)/python -m tools.store_wheel dist

clean:  ## remove what was made here
	rm -rf $(VENV) build dist .demo *.egg-info

.PHONY: help setup demo test test-other test-more test-models test-all lint types bench bench-operators bench-plot fuzz docs site wheels store clean
