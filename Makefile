# `make` alone lists what there is. Everything runs in .venv, which the first target that needs it sets up.
PYTHON ?= python3
ifeq ($(OS),Windows_NT)
VENV_PYTHON := .venv/Scripts/python.exe
else
VENV_PYTHON := .venv/bin/python
endif

.PHONY: help setup book test lint bench address clean

help:     ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

setup:    ## make the environment in .venv (the other targets do it by themselves)
	@$(PYTHON) tools/environment.py

book: setup     ## execute and build the whole book, and say where it is
	@$(VENV_PYTHON) tools/book.py

test: setup     ## run all tests
	$(VENV_PYTHON) -m pytest -n 2 --dist loadfile

lint: setup     ## check style, format and types
	$(VENV_PYTHON) -m ruff check
	$(VENV_PYTHON) -m ruff format --check
	$(VENV_PYTHON) -m mypy

bench: setup    ## measure speed, accuracy, and time and memory of each chapter
	@for script in benchmarks/[!_]*.py; do echo "== $$script"; $(VENV_PYTHON) $$script || exit 1; done

address: setup  ## write the repository's address, a key in pyproject.toml, wherever it is needed
	@$(VENV_PYTHON) tools/address.py

clean:    ## remove the built book and all caches, but not .venv
	rm -rf _build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find lib tests tools benchmarks book -name __pycache__ -prune -exec rm -rf {} +
