# Everything runs in .venv, which `make venv` makes from constraints.txt.

SHELL := /bin/bash
BIN := .venv/bin
WORKERS ?= 2
# Triton compiles in as many processes at once
GPU_WORKERS ?= 12
# where `make bench` leaves what it finds on a GPU
BENCH_OUT ?= benchmarks/results/gpu_pointwise.json
# the first interpreter of the search path that is new enough
PYTHON ?= $(firstword $(foreach p,python3 python3.11 python3.12 python3.13,\
  $(shell $(p) -c 'import sys; sys.version_info >= (3, 11) and print("$(p)")' 2>/dev/null)))

.DEFAULT_GOAL := help
.PHONY: help venv demo test lint format golden bench gpu-test clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' $(MAKEFILE_LIST) | expand -t 18

venv: .venv/installed ## make .venv and install the package with all it needs

.venv/installed: pyproject.toml constraints.txt
	$(if $(PYTHON),,$(error no Python 3.11 or newer found; name one with make PYTHON=...))
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test,tilelang]'
	touch $@

demo: venv ## the main job: declare, check, print, export and train a variant
	$(BIN)/gnomon demo

test: venv ## all tests; ARGS='-k fox' passes arguments to pytest
	$(BIN)/pytest -W error -n $(WORKERS) --dist worksteal $(ARGS)

lint: venv ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: venv ## let ruff write what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

golden: venv ## write tests/golden anew; read the difference before you commit it
	$(BIN)/pytest -q --update-golden $(ARGS)

bench: venv ## time the kernels beside their peers: CPU, and GPU where there is one
	$(BIN)/pytest -W error --benchmark-enable -o python_files='bench_*.py' benchmarks $(ARGS)
	if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; \
	  then $(BIN)/gnomon bench --out $(BENCH_OUT); \
	  else echo 'no CUDA device: gnomon bench is left out'; fi

gpu-test: venv ## the kernels on a CUDA device, beside the oracle; writes benchmarks/results/gpu_tests.json
	GNOMON_KERNEL_SUMMARY=benchmarks/results/gpu_tests.json \
	  $(BIN)/pytest -W error -m gpu tests/kernels -n $(GPU_WORKERS) --dist loadgroup $(ARGS)

clean: ## remove .venv and what tools have cached
	rm -rf .venv build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
