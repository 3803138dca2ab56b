# Every command of the project. Nothing is installed twice: the stamps in .venv know what they were made from.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt $(shell find native -name '*.c' -o -name '*.h' -o -name '*.map' -o -name '*.def' -o -name 'CMakeLists.txt')

# Python keeps what it has compiled, whatever the caller's environment says: the tests start thousands of processes, and
# each of them would spend as much time again on compiling what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test soak test-gpu native-test check bench docs wheel lock clean

help: ## list these targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 14

setup: $(VENV)/.installed ## make .venv with pinned tools and cotenant in it
	@echo "setup: $(VENV) is ready"

$(BIN)/python:
	@echo "setup: making $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# Not compiled: most of it is never imported, and the rest is compiled when it is.
$(VENV)/.pinned: requirements.lock | $(BIN)/python
	@echo "setup: installing what requirements.lock pins"
	@$(BIN)/python -m pip install --quiet --no-compile --requirement requirements.lock
	@touch $@

$(VENV)/.installed: $(VENV)/.pinned pyproject.toml $(NATIVE)
	@echo "setup: building and installing cotenant in place"
	@$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable .
	@touch $@

demo: $(VENV)/.installed ## show cotenant at work
	@echo "demo: running cotenant demo"
	@$(BIN)/python -m cotenant demo

# Most tests wait for processes more than they compute: three at a time keep two cores busy. A worker that has run out
# takes tests from the others, so that no file's length decides how long it all takes.
TEST_WORKERS ?= 3

test: $(VENV)/.installed ## run every test, the native ones under ASan and UBSan included
	@echo "test: running every test, $(TEST_WORKERS) at a time"
	@$(BIN)/python -m pytest --numprocesses $(TEST_WORKERS) --dist worksteal

# The same tests, and in each as many examples, kills and rounds as an hour or two have room for.
soak: $(VENV)/.installed ## run every test with many times the random cases (hours)
	@echo "soak: running every test with many times the random cases, $(TEST_WORKERS) at a time"
	@COTENANT_SOAK=1 $(BIN)/python -m pytest --numprocesses $(TEST_WORKERS) --dist worksteal

test-gpu: $(VENV)/.installed ## run the hook before the driver that is installed here
	@echo "test-gpu: running the hook before the installed NVIDIA driver"
	@$(BIN)/python -m pytest --quiet tests/gpu || [ $$? -eq 5 ] # 5: no driver here, so all of them were skipped

native-test: $(VENV)/.installed ## run the C tests alone, under ASan and UBSan
	@echo "native-test: building and running the C tests in build/asan"
	@$(BIN)/python -m pytest tests/native/test_native_suite.py

check: $(VENV)/.installed ## lint, format, imports, types
	@echo "check: ruff, ruff format, import-linter, mypy"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/mypy

bench: $(VENV)/.installed ## measure the loop, as JSON
	@echo "bench: measuring the loop" >&2
	@$(BIN)/cotenant bench loop --json

docs: $(VENV)/.installed ## check every link and every command that the documents name
	@echo "docs: checking links and commands"
	@$(BIN)/python -m pytest --quiet tests/test_docs.py

wheel: $(VENV)/.installed ## build a wheel into dist/
	@echo "wheel: building into dist/"
	@$(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
	@ls -l dist/*.whl

# Run by hand after a change to the dependencies; --upgrade as LOCK_OPTIONS takes newer versions.
lock: $(BIN)/python ## pin every dependency anew in requirements.lock
	@echo "lock: pinning into requirements.lock"
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --extra serve --generate-hashes --no-annotate \
		--no-emit-index-url --no-emit-find-links $(LOCK_OPTIONS) --output-file requirements.lock pyproject.toml

clean: ## remove what was built; .venv stays
	@echo "clean: removing build/, dist/ and caches"
	@rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
