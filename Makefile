# HlServe. `make help` explains every target. Needed: git, make, and Python 3.11 or newer with venv and pip.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Every Python that starts here would die at its first import, so no target gets that far.
ifneq ($(wildcard operator/__init__.py),)
$(error operator/__init__.py shadows the standard library's operator module: delete that file)
endif

PYTHON ?= python3
UV ?= uv
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Workspace members in the order of their dependencies; each has src/ and tests/. The engine plugin is no member: it shares nothing with them.
MEMBERS := crds capacity operator router engine-image/sim bench e2e cli
PACKAGES := hlserve_api hlserve_capacity hlserve_operator hlserve_router hlserve_sim hlserve_bench hlserve_local hlserve_cluster hlserve_cli hlserve_engine repository_checks
SOURCES := $(MEMBERS) engine-image/plugin
# Modules that write generated files; with --check they compare instead. Append new generators here.
GENERATORS := hlserve_api.generate hlserve_router.testing.reference hlserve_bench.report.schema hlserve_bench.router.page hlserve_router.settings_page repository_checks.adr_index repository_checks.chart_values
# Locks of images: name:member, where the lock holds the member's third-party dependencies and those of the members it needs.
IMAGES := router:router operator:operator sim:engine-image/sim
# The cluster of cluster-up: full (a node that runs pods; needs root) or api (an API server with simulated nodes).
PROFILE ?= full
CLUSTER = $(BIN)/python -m hlserve_cluster
# Real clients, each in an environment of its own: locks/clients-NAME.txt from the dependency group client-NAME.
CLIENTS := openai openai-previous anthropic anthropic-previous langchain litellm schemathesis
CLIENT_STAMPS := $(CLIENTS:%=build/clients/%/.installed)
VERIFY_PARTS := verify-format verify-lint verify-types verify-imports verify-generated verify-repository

generate verify-generated verify-repository: export PYTHONPATH := tools$(if $(PYTHONPATH),:$(PYTHONPATH))
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help install fmt lint type helm test test-clients generate verify $(VERIFY_PARTS) demo compile bench-policy bench-router bench-router-report soak lock clean cluster-preflight cluster-programs cluster-up cluster-down cluster-status images test-cluster

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(STAMP) ## Create .venv with every member and tool, from hash-pinned packages. Instant if nothing changed.

$(STAMP): locks/dev.txt $(addsuffix /pyproject.toml,$(SOURCES))
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "HlServe needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) -V 2>&1). Name one: make install PYTHON=/path/to/python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot create virtual environments. Install its venv package (Debian, Ubuntu: apt install python3-venv)." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --requirement locks/dev.txt
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation $(addprefix --editable ./,$(SOURCES))
	@touch $@

fmt: $(STAMP) ## Format the code and apply safe lint fixes.
	$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .

lint: verify-format verify-lint verify-imports ## Check format, lint rules and import contracts.

type: verify-types ## Check types, strictly, tests included.

helm: $(STAMP) ## Fetch Helm 4, Helm 3 and kubectl into the cache, for tests of the charts: 80 MB once, then nothing.
	@$(CLUSTER) helm

test: helm ## Run all tests that need no cluster and no GPU. PYTEST_ARGS narrows them.
	@command -v valkey-server >/dev/null || command -v redis-server >/dev/null || \
	  echo "The tests of shared limits need a Valkey-protocol server and will fail. Install one (Debian, Ubuntu: apt install redis-server)." >&2
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-clients: $(CLIENT_STAMPS) ## Run real clients (SDKs of two majors, LangChain, litellm, curl, schemathesis) against the router.
	$(BIN)/python -m pytest -m clients $(wildcard router/tests/test_router_clients*.py) $(PYTEST_ARGS)

build/clients/%/.installed: locks/clients-%.txt | $(STAMP)
	$(BIN)/python -m venv --clear --without-pip $(@D)
	$(BIN)/python -m pip --python $(@D)/bin/python install --quiet --require-hashes --requirement $<
	@touch $@

generate: $(STAMP) ## Write every generated file anew: CRDs, schemas, reference pages, the ADR index, the chart's README, the benchmark's page.
	@for module in $(GENERATORS); do echo "$$module"; $(BIN)/python -m $$module; done

verify: ## Run every static check, report all that fail.
	@$(MAKE) --no-print-directory --keep-going $(VERIFY_PARTS)

verify-format: $(STAMP) ## Part of verify: the code is formatted.
	$(BIN)/ruff format --check .

verify-lint: $(STAMP) ## Part of verify: lint rules.
	$(BIN)/ruff check .

verify-types: $(STAMP) ## Part of verify: mypy strict over packages, then over each member's tests by itself.
	@failed=0; $(BIN)/mypy $(addprefix --package ,$(PACKAGES)) || failed=1; \
	for folder in $(addsuffix /tests,$(SOURCES)) tests; do $(BIN)/mypy "$$folder" || failed=1; done; exit $$failed

verify-imports: $(STAMP) ## Part of verify: the import contracts of pyproject.toml.
	$(BIN)/lint-imports

verify-generated: $(STAMP) ## Part of verify: no generated file was edited by hand or left behind its source.
	@failed=0; for module in $(GENERATORS); do $(BIN)/python -m $$module --check || failed=1; done; exit $$failed

verify-repository: $(STAMP) ## Part of verify: file sizes, locks, links, folders, machine addresses, make targets.
	$(BIN)/python -m repository_checks

demo: $(STAMP) ## Run the main job on this machine: two pools of simulated engines, real clients, a report.
	$(BIN)/hlserve demo $(DEMO_ARGS)

compile: $(STAMP) ## Compile the router's hot modules with mypyc into build/compiled (needs a C compiler); PYTHONPATH=build/compiled runs them.
	$(BIN)/python tools/compile_router.py

bench-router: $(STAMP) ## Measure the router beside other proxies, one core each: 20 minutes; BENCH_ARGS="--rounds 1 --only hlserve,envoy" for less.
	$(BIN)/python -m hlserve_bench.router run --out docs/benchmarks $(BENCH_ARGS)

bench-router-report: $(STAMP) ## Write docs/benchmarks/router.md from the rows of the last bench-router.
	$(BIN)/python -m hlserve_bench.router.page

soak: $(STAMP) ## Hold 1,000 streams open through the router for ten minutes, write docs/benchmarks/router-soak.md. SOAK_SECONDS, SOAK_STREAMS, SOAK_ARGS.
	$(BIN)/python -m hlserve_bench.router soak --seconds $(or $(SOAK_SECONDS),600) --streams $(or $(SOAK_STREAMS),1000) --out docs/benchmarks $(SOAK_ARGS)

bench-policy: $(STAMP) ## Measure the router's policies on simulated engines: 5 minutes, and 14 beside sglang-router on the clock (POLICY_ARGS=--no-live, --live-only).
	$(BIN)/python -m hlserve_local.policy --out docs/benchmarks $(POLICY_ARGS)

cluster-preflight: $(STAMP) ## Say what this machine lacks for PROFILE=full or api, and the command that installs it.
	@$(CLUSTER) preflight --profile $(PROFILE) --images

cluster-programs: $(STAMP) ## Build Kubernetes and its helpers into the cache: 15 to 20 minutes once, then nothing. PROFILE.
	@$(CLUSTER) programs --profile $(PROFILE)

cluster-up: $(STAMP) ## Start a real Kubernetes on this machine, GPUs simulated. PROFILE=full or api, GPUS=8, NODES=0 (simulated, api).
	@$(CLUSTER) up --profile $(PROFILE) --gpus $(or $(GPUS),8) --nodes $(or $(NODES),0)

cluster-down: $(STAMP) ## End the cluster of PROFILE and set the machine back as it was.
	@$(CLUSTER) down --profile $(PROFILE)

cluster-status: $(STAMP) ## Say what of the cluster of PROFILE runs.
	@$(CLUSTER) status --profile $(PROFILE)

images: $(STAMP) ## Build the images of operator, router and simulated engine, and give them to the cluster if it is up. BASE=image, IMAGE=name.
	@$(CLUSTER) images $(if $(BASE),--base $(BASE)) $(IMAGE)

test-cluster: $(STAMP) ## Run the tests that need a real Kubernetes: ours, or the one of CONTEXT=name in your kubeconfig. PYTEST_ARGS narrows them.
	@$(CLUSTER) programs --profile full && $(CLUSTER) programs --profile api && $(CLUSTER) images --missing
	$(BIN)/python -m pytest -p hlserve_cluster.pytest_plugin -m cluster $(if $(CONTEXT),--context $(CONTEXT)) $(PYTEST_ARGS)

lock: ## Resolve dependencies again into locks/ (needs uv; keeps pins that still fit).
	$(call compile,locks/dev.txt,--group dev $(addsuffix /pyproject.toml,$(MEMBERS)))
	$(foreach image,$(IMAGES),$(call compile,locks/$(firstword $(subst :, ,$(image))).txt,$(lastword $(subst :, ,$(image)))/pyproject.toml --constraint locks/dev.txt)$(newline))
	$(foreach client,$(CLIENTS),$(call compile,locks/clients-$(client).txt,--group client-$(client))$(newline))

clean: ## Remove what was built or cached, and .venv.
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache $(VENV)
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

OWN := hlserve-workspace hlserve-api hlserve-capacity hlserve-operator hlserve-router hlserve-sim hlserve-bench hlserve-local hlserve
compile = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
	$(addprefix --no-emit-package ,$(OWN)) --output-file $(1) $(2)
define newline


endef
