# make demo   builds everything into .venv and runs `arena demo`: a program that CuPy's pool has no room for, and the report
# make test   builds everything, installs what the tests need, and runs them
# make debug  runs the tests of the arena on a build that checks every invariant after every operation
# make long   the tests of reliability for about an hour: random programs against the model, and load
# make lint   format, types and declarations; what CI checks beside the tests
# make bench  the benchmarks

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
SOURCES := CMakeLists.txt pyproject.toml $(shell find src python -type f -not -name '*.pyc')
CXX_FILES := $(shell find src tools tests -name '*.cpp' -o -name '*.hpp' -o -name '*.h')

.PHONY: demo test debug long lint format bench clean

demo: $(VENV)/.package
	@mkdir -p build
	$(BIN)/arena demo --force --save build/arena-demo.html

test: $(VENV)/.package $(VENV)/.test $(VENV)/.cupy13 $(VENV)/torch/_memory_viz.py
	@sh tools/get_chromium.sh
	$(BIN)/python -m pytest $(PYTEST_FLAGS)

debug: build/debug/.package $(VENV)/.test
	PYTHONPATH=build/debug $(BIN)/python -c 'import arena; assert arena._core.VALIDATES'
	PYTHONPATH=build/debug $(BIN)/python -m pytest -q tests/arena $(PYTEST_FLAGS)

# Steps of random programs, and seconds of load.
ARENA_STEPS ?= 1500000
ARENA_LOAD_SECONDS ?= 600
long: export ARENA_STEPS := $(ARENA_STEPS)
long: export ARENA_LOAD_SECONDS := $(ARENA_LOAD_SECONDS)
long: $(VENV)/.package $(VENV)/.test
	$(BIN)/python -m pytest tests/reliability/test_model.py tests/reliability/test_load.py $(PYTEST_FLAGS)

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

bench: $(VENV)/.package $(VENV)/.test
	$(BIN)/python benchmarks/driver_calls.py
	$(BIN)/python benchmarks/traces.py
	$(BIN)/python benchmarks/inspection.py
	$(BIN)/python benchmarks/cupy_malloc.py

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

$(VENV)/.lint: $(VENV)/.python pyproject.toml
	$(PIP) install $$($(BIN)/python tools/extras.py lint)
	@touch $@
