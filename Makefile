# make demo   builds everything into .venv and runs `arena demo`: a program that CuPy's pool has no room for, and the report
# make test   builds everything, installs what the tests need, and runs them
# make debug  runs the tests of the arena on a build that checks every invariant after every operation
# make faults every call of the driver that the arena makes fails with every documented error; CI tries a part of that
# make test-gpu  the conformance suite on NVIDIA's driver and device 0; skipped where there is none
# make lint   format, types and declarations; what CI checks beside the tests
# make bench  the benchmarks, into docs/benchmarks.md
# make count  the instructions of the hit path, compared with those that were recorded

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
SOURCES := CMakeLists.txt pyproject.toml $(shell find src python -type f -not -name '*.pyc')
TREE = $(firstword $(wildcard build/$(shell $(BIN)/python -c 'import sys; print("cp%d%d" % sys.version_info[:2])')-*))
CXX_FILES := $(shell find src tools benchmarks -name '*.cpp' -o -name '*.hpp' -o -name '*.h')

.PHONY: demo test test-gpu debug faults lint format bench count clean

demo: $(VENV)/.package
	@mkdir -p build
	$(BIN)/arena demo --force --save build/arena-demo.html

test: $(VENV)/.package $(VENV)/.test $(VENV)/.cupy13 $(VENV)/torch/_memory_viz.py
	@sh tools/get_chromium.sh
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

debug: build/debug/.package $(VENV)/.test
	PYTHONPATH=build/debug $(BIN)/python -c 'import arena; assert arena._core.VALIDATES'
	PYTHONPATH=build/debug $(BIN)/python -m pytest -q tests/arena $(PYTEST_FLAGS)

test-gpu: $(VENV)/.package $(VENV)/.test
	$(BIN)/python -m pytest -v tests/gpu -k cuda $(PYTEST_FLAGS)

faults: $(VENV)/.package $(VENV)/.test
	ARENA_FAULTS=all $(BIN)/python -m pytest -q tests/reliability/test_faults.py $(PYTEST_FLAGS)

lint: $(VENV)/.package $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(CXX_FILES)
	$(BIN)/mypy
	cd "$$(mktemp -d)" && $(abspath $(BIN))/python -m mypy.stubtest arena._core
	$(BIN)/python tools/check_includes.py
	$(BIN)/python tools/check_abi.py --self-test

format: $(VENV)/.lint
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

# CUPY_PYTHON: a Python whose CuPy has a CUDA runtime, to compare arena with CuPy's own pool
bench: $(VENV)/.package $(VENV)/.test $(VENV)/.bench build/core_benchmark
	$(BIN)/python benchmarks/all.py $(if $(CUPY_PYTHON),--cupy-python $(CUPY_PYTHON))

count: $(VENV)/.package build/core_benchmark
	@command -v valgrind >/dev/null || apt-get -qq install -y valgrind
	$(BIN)/python benchmarks/instructions.py

# From what the package was built of.
build/core_benchmark: $(VENV)/.package benchmarks/core.cpp benchmarks/CMakeLists.txt
	$(BIN)/cmake -DARENA_BENCHMARKS=ON $(TREE) >/dev/null
	$(BIN)/cmake --build $(TREE) --target core_benchmark
	cp $(TREE)/benchmarks/core_benchmark $@

clean:
	rm -rf $(VENV) build dist

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "arena needs Python 3.10 or later")'
	$(PYTHON) -m venv $(VENV) || { echo "no virtual environment: install Python's venv module (Debian: python3-venv)"; exit 1; }
	@touch $@

$(VENV)/.build: $(VENV)/.python pyproject.toml
	$(PIP) install 'scikit-build-core>=0.11' 'pybind11>=3.0' 'cmake>=3.20' ninja $$($(BIN)/python tools/extras.py dependencies)
	@touch $@

$(VENV)/.package: $(VENV)/.build $(SOURCES)
	$(PIP) install --no-build-isolation --no-deps --force-reinstall --config-settings=cmake.define.ARENA_WERROR=$(if $(CI),ON,OFF) .
	@touch $@

build/debug/.package: $(VENV)/.build $(SOURCES)
	$(PIP) install --no-build-isolation --no-deps --upgrade --target build/debug \
	  --config-settings=cmake.build-type=Debug --config-settings=build-dir=build/debug-tree .
	@touch $@

$(VENV)/.test: $(VENV)/.python pyproject.toml
	$(PIP) install $$($(BIN)/python tools/extras.py test clients readers)
	@touch $@

# An older CuPy beside the other, in a folder of its own. There is none for Python 3.14 and later.
$(VENV)/.cupy13: $(VENV)/.python
	$(PIP) install --upgrade --no-deps --target $(VENV)/cupy13 'cupy-cuda12x>=13,<14; python_version < "3.14"' fastrlock
	@touch $@

# PyTorch's reader of its memory snapshots, which needs nothing else of it: one file of its wheel.
$(VENV)/torch/_memory_viz.py: $(VENV)/.python
	$(BIN)/python tools/take_from_wheel.py torch==2.13.0 torch/cuda/_memory_viz.py $@

$(VENV)/.bench: $(VENV)/.python pyproject.toml
	$(PIP) install $$($(BIN)/python tools/extras.py bench)
	@touch $@

$(VENV)/.lint: $(VENV)/.python pyproject.toml
	$(PIP) install $$($(BIN)/python tools/extras.py lint)
	@touch $@
