# Every target does its own set-up in .venv; a machine needs only Python 3.11+, pip and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --constraint constraints.txt
WORKERS ?= 2
# Tests of one file stay in one worker, so that what they share is made once.
DIST ?= loadfile
# Of the audits that `make calibration` counts; sections that a stopped call left are kept.
SCALE ?= 1
# Runs of every fault, and audits of every correct run, that `make faults` counts.
RUNS ?= 100
AUDITS ?= 300

# One core a worker: numerical libraries that also spawn threads only slow each other down.
export OMP_NUM_THREADS ?= 1
export OPENBLAS_NUM_THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: help run test test-fast durations snapshots test-portable test-lowest test-pythons lint types check bench clean-runs leaks calibration monitor mechanisms final faults flower opacus-versions lora fuzz kills mutants comparison museum notebooks paper pictures release docs docs-release clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(VENV)/base.stamp: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

$(VENV)/demo.stamp: $(VENV)/base.stamp
	$(PIP) torch==2.13.0
	$(PIP) --editable ".[opacus,sklearn]"
	touch $@

$(VENV)/all.stamp: $(VENV)/base.stamp
	$(PIP) torch==2.13.0
	$(PIP) --editable ".[opacus,lightning,transformers,jax,keras,sklearn,paper,ray,test,docs,dev]"
	touch $@

run: $(VENV)/demo.stamp  ## train with Opacus, canaries attached, and audit: verdict and report
	$(BIN)/askgauss demo

test: $(VENV)/all.stamp  ## the whole test suite
	$(BIN)/python -m pytest -n $(WORKERS) --dist $(DIST)

test-fast: $(VENV)/all.stamp  ## the inner loop: what needs no training, process or browser
	$(BIN)/python -m pytest -n $(WORKERS) --dist $(DIST) -m fast

durations: $(VENV)/all.stamp  ## CPU seconds of the whole suite, by folder and by costly file
	$(BIN)/python -m pytest -n $(WORKERS) --dist $(DIST) -p tests.durations

snapshots: $(VENV)/all.stamp  ## what fixed runs answer otherwise than before, words and numbers apart; keeps it
	$(BIN)/python -m tests.snapshots --write

test-portable: $(VENV)/all.stamp  ## the numerical part as other processors, locales and time zones have it
	PYTHON=$(BIN)/python WORKERS=$(WORKERS) .ci/portable

test-lowest:  ## the numerical and command line part on the oldest dependencies allowed
	.ci/lowest

test-pythons:  ## the numerical and command line part on every Python from 3.11 found here
	.ci/pythons

lint: $(VENV)/all.stamp  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/all.stamp  ## static types, strict
	$(BIN)/mypy

check: lint types docs test  ## what CI runs

clean-runs: $(VENV)/all.stamp  ## clean runs of Opacus and every trainer, no exact check may alarm; rewrites docs/clean-runs.md
	$(BIN)/python -m benchmarks.clean_runs 300 --output docs/clean-runs.md

leaks: $(VENV)/all.stamp  ## leaking loops: found, and named; correct ones beside them; rewrites docs/leaks.md
	$(BIN)/python -m benchmarks.leaks --output docs/leaks.md

bench: $(VENV)/all.stamp  ## ratios measured side by side
	$(BIN)/python -m benchmarks

calibration: $(VENV)/all.stamp  ## the full coverage grid, an hour of CPU; rewrites docs/calibration.md
	$(BIN)/python -m tests.calibration.full --workers $(WORKERS) --scale $(SCALE) --resume --output docs/calibration.md

monitor: $(VENV)/all.stamp  ## how soon a monitor alarms, and how rarely by mistake: the tables of docs/monitor.md
	$(BIN)/python -m tests.calibration.monitor_cells

mechanisms: $(VENV)/all.stamp  ## any mechanism: broken ones found, correct ones not; the tables of docs/any-mechanism.md
	$(BIN)/python -m tests.calibration.mechanism_cells --broken --audits 20 --table
	$(BIN)/python -m tests.calibration.mechanism_cells --audits 1000 --table 30 100 300
	$(BIN)/python -m tests.calibration.final_cells

final: $(VENV)/all.stamp  ## what finished models tell, on Fashion-MNIST: the tables of docs/final-models.md
	$(BIN)/python -m paper data fetch fashion-mnist
	$(BIN)/python -m benchmarks.final_models

faults: $(VENV)/all.stamp  ## every named fault, its finding and its power; rewrites docs/faults.md
	$(BIN)/python -m tests.faults.table --workers $(WORKERS) --runs $(RUNS) --audits $(AUDITS) --output docs/faults.md

# Flower wants an older typer than the command line has, so that it lives apart.
.venvs/flower/stamp:
	$(PYTHON) -m venv .venvs/flower
	.venvs/flower/bin/python -m pip install --quiet "flwr[simulation]==1.41.0" "numpy>=2.0" "scipy>=1.14" dp-accounting==0.6.0
	touch $@

opacus-versions: $(VENV)/all.stamp  ## every minor release of Opacus from 1.4 on, tried; rewrites docs/opacus-versions.md
	$(BIN)/python -m benchmarks.opacus_versions --output docs/opacus-versions.md

lora: $(VENV)/all.stamp  ## what an audit costs a GPT-2 of 124 million parameters that trains by LoRA
	$(PIP) transformers peft
	$(BIN)/python -m benchmarks.gpt2

flower: $(VENV)/all.stamp .venvs/flower/stamp  ## audit Flower's released strategies, in an environment of their own
	$(BIN)/python -m pytest tests/integrations/test_flower.py

fuzz: $(VENV)/all.stamp  ## damaged files over every reader, in little memory
	$(BIN)/python -m tests.fuzz --count 100000

comparison: $(VENV)/all.stamp  ## other auditing packages on the same scores; rewrites docs/comparison.md
	PYTHON=$(BIN)/python .ci/rivals
	$(BIN)/python -m benchmarks.comparison

museum: $(VENV)/all.stamp  ## real bugs of released libraries beside mended twins; rewrites docs/museum.md, goes on where it stopped
	$(BIN)/python -m museum all --docs docs/museum.md

notebooks: $(VENV)/all.stamp  ## execute the notebooks and keep them with their output, in notebooks/ and docs/notebooks/
	$(PIP) --editable ".[notebooks]"
	$(BIN)/python -m notebooks

pictures: $(VENV)/base.stamp  ## the diagrams of the documentation
	$(BIN)/python .ci/pictures.py

paper: $(VENV)/all.stamp  ## the paper's experiments at full scale; rewrites docs/reproduction.md, goes on where it stopped
	$(BIN)/python -m paper data fetch cifar10
	$(BIN)/python -m paper reproduce all --folder reproduction --docs docs

release: $(VENV)/all.stamp  ## wheel, sdist and bill of materials, installed and used in empty environments
	PYTHON=$(BIN)/python .ci/wheel
	$(BIN)/python .ci/sbom.py dist/sbom.json

kills: $(VENV)/all.stamp  ## runs of every kind killed two hundred times, and what came out of them
	$(BIN)/python -m tests.kills

mutants: $(VENV)/all.stamp  ## deliberate faults, and the tests that find them; rewrites docs/mutants.md
	$(BIN)/python -m tests.mutants --fast --workers $(WORKERS)

docs: $(VENV)/all.stamp  ## the documentation, warnings as errors
	$(BIN)/mkdocs build --strict --site-dir site

docs-release: $(VENV)/all.stamp  ## the documentation in a folder of its version, beside those of earlier ones
	$(BIN)/python .ci/versioned_docs.py site

clean:  ## remove the environment and caches
	rm -rf $(VENV) .venvs .pytest_cache .mypy_cache .ruff_cache .hypothesis dist
