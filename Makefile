# Things a person starts. `make` alone lists them.

PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
# Tests start mitmproxy hundreds of times. Where Python may keep no bytecode, each start compiles all of it anew: 5.8 s of
# processor time instead of 2.4.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/.cache/bytecode

.DEFAULT_GOAL := help
.PHONY: help run test unit demo accuracy bench bench-quick bench-overhead soak divergence coverage lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-15s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: $(VENV)/installed-server ## toki in front of LLAMA_URL (http://127.0.0.1:8080) or an embedded llama-server; PORT=8081
	@$(RUN) scripts/run.py

test: $(VENV)/installed-test ## lint, types and the whole suite, real servers included, on each Python of 3.11 to 3.13
	@$(RUN) scripts/suite.py

unit: $(VENV)/installed-test ## the fast tests alone, with fewer examples
	@$(RUN) -m pytest --quiet --numprocesses=2 --hypothesis-profile=quick -m "not slow" \
		--ignore=tests/live --ignore=tests/clients --ignore=tests/install

demo: $(VENV)/installed-server ## four agent-like sessions, straight to the embedded server and through toki
	@$(RUN) scripts/demo.py

accuracy: $(VENV)/installed-test ## are the predictions those of the real servers? SEED=n
	@$(RUN) scripts/accuracy.py $(if $(SEED),--seed $(SEED))

bench: $(VENV)/installed-bench ## evaluated tokens and times against the server alone: many hours; SEEDS=a,b
	@$(RUN) scripts/bench.py --check $(if $(SEEDS),--seeds $(SEEDS))

bench-quick: $(VENV)/installed-bench ## the same in under two minutes: a few scenarios
	@$(RUN) scripts/bench.py --quick $(if $(SEEDS),--seeds $(SEEDS))

bench-overhead: $(VENV)/installed-test ## what toki adds to a request, in milliseconds
	@$(RUN) scripts/bench_overhead.py

soak: $(VENV)/installed-bench ## 64 clients at once, then hostile input, for long: does anything grow, fail or slow down?
	@$(RUN) scripts/soak.py --output docs/bench/soak.json $(if $(SECONDS),--seconds $(SECONDS))
	@$(RUN) -m pytest --quiet --hypothesis-profile=long tests/test_hostile.py

divergence: $(VENV)/installed-test ## do answers change with what is reused, and how? Hours; goes on where it was stopped
	@$(RUN) scripts/divergence.py calibrate
	@$(RUN) scripts/divergence.py collect
	@$(RUN) scripts/divergence.py report

coverage: $(VENV)/installed-test ## everything on this Python, and which lines no test reaches; below 90 % it fails
	@$(RUN) scripts/suite.py --coverage

lint: $(VENV)/installed-test ## style and types
	@$(RUN) scripts/suite.py --lint

clean: ## remove everything that was made here, virtual environments included
	rm -rf .venv .venv-3.* .venv-clients tests/clients/node/node_modules .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .coverage.* build dist
	find addon scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/installed-%: pyproject.toml scripts/install.py
	@$(PYTHON) scripts/install.py $(VENV) $*
