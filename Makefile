# Three commands do everything: `make run`, `make fast` and `make test`. Set PYTHON to choose an interpreter (>= 3.11).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# One process per core, each with the tests that are left over. `make test JOBS=0` runs them in one process.
JOBS ?= auto
PARALLEL := -n $(JOBS) --maxprocesses=8 --dist=worksteal

.PHONY: run fast test slow deployment lint forms bench scale history docs release coverage clean

run: $(VENV)/.installed
	$(BIN)/privbo run experiments/quickstart.toml --show-private

# Lint, types and the tests of the packages that differ from main; under a minute.
fast: $(VENV)/.installed-test lint
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not long and not deployment and not browser and not system" \
	  $$($(BIN)/python .ci/touched)

test: $(VENV)/.installed-test lint
	$(BIN)/python -m pytest $(PARALLEL) -m "not slow and not deployment"

slow: $(VENV)/.installed-deployment
	$(BIN)/python -m pytest -m slow

# Real processes on loopback: crashes, TLS, hostile nodes, no packet that leaves. About six minutes.
deployment: $(VENV)/.installed-deployment
	$(BIN)/python -m pytest $(PARALLEL) -m "deployment and not slow"

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/codespell
	$(BIN)/python -m tests.docs.prose

# Forms that only GitHub and pre-commit read: their schemas, and what zizmor knows of workflows that leak.
forms: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet check-jsonschema zizmor pre-commit
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/[bpq]*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff
	$(BIN)/zizmor --offline .github
	$(BIN)/pre-commit validate-config

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks experiments.baselines.speed --out bench-baselines.json
	$(BIN)/python -m benchmarks._page docs/speed.md bench.json bench-baselines.json

# A quarter of an hour, on a machine that does nothing else: many clients and many workers, onto docs/scale.md.
CLIENTS ?= 100000
scale: $(VENV)/.installed-bench
	PRIVBO_SCALE_CLIENTS=$(CLIENTS) $(BIN)/python -m benchmarks many scale --out scale.json
	$(BIN)/python -m benchmarks._page docs/scale.md scale.json

# Timings of this commit, kept beside those of earlier ones and drawn into build/asv/site. On a quiet machine.
ASV := $(BIN)/asv --config benchmarks/over_time/asv.conf.json
history: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet asv
	$(ASV) machine --yes
	$(ASV) run --environment existing:$(BIN)/python --set-commit-hash $$(git rev-parse HEAD)
	$(ASV) publish

docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build -W --keep-going -j 2 -q -d build/doctrees docs build/site
	$(BIN)/python -m tests.docs.offline build/site

coverage: $(VENV)/.installed-test
	$(BIN)/python -m pytest -m "not slow and not deployment" --cov --cov-report=
	$(BIN)/coverage report --include='accountant/*,privbo/door/*' --fail-under=98
	$(BIN)/coverage report --omit='accountant/*,privbo/door/*' --fail-under=90

# Wheel and sdist of the last commit, tried with every Python that is here, with checksums and notes: dist/.
release: | $(BIN)/python
	$(BIN)/python .ci/release

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "privbo needs Python >= 3.11; name one: make PYTHON=python3.12 ..."; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[quickstart]'
	touch $@

$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[test]'
	touch $(VENV)/.installed $@

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	touch $(VENV)/.installed $@

$(VENV)/.installed-bench: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet -e '.[test,bench]'
	touch $@

$(VENV)/.installed-deployment: $(VENV)/.installed-test
	$(BIN)/python -m pip install --quiet -e '.[test,flower-sim]'
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .grimp_cache
