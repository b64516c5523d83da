# make demo   builds everything into .venv and runs `arena demo`: a program that CuPy's pool has no room for, and the report
# make test   builds everything, installs what the tests need, and runs them; with -j2, both halves at the same time
# make validate  runs the tests of the arena with every invariant checked after every operation
# make faults every call of the driver that the arena makes fails with every error of the list; CI tries the first 50
# make promise  over 100,000 requests, in every mode, against a model that tries every place; CI runs a tenth of them
# make races  whole traces under the race checker, 20 seeds; CI plays a part of them for each
# make test-gpu  the conformance tests on NVIDIA's driver, each in a process of its own, into build/test-gpu.json;
#             DRIVER=sim runs them on the simulated driver
# make sanitize  the tests of the compiled parts under AddressSanitizer and UBSan, and with those of threads under ThreadSanitizer
# make sanitize-python  the tests of the arena and of the readers of files under AddressSanitizer and UBSan
# make fuzz   looks for inputs that crash the core or a reader of files: each target for FUZZ_SECONDS, two at a time
# make long   the tests of reliability for about an hour: random programs against the model, and load
# make wheel  the wheel in an environment of its own
# make lint   format, types and declarations; what CI checks beside the tests
# make bench  the benchmarks, into docs/benchmarks.md
# make count  the instructions of the hit path, compared with those that were recorded
# make alone  compiles each source alone, to see that it includes what it needs; all other builds compile them together
# make ready  installs what the others need, and builds what most wait for; `make -j2 checks` then does all that CI does

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
INSTALL := flock $(VENV)/.lock $(PIP) install --no-compile
SOURCES := CMakeLists.txt pyproject.toml $(shell find src python -type f -not -name '*.pyc')
TREE = $(firstword $(wildcard build/$(shell $(BIN)/python -c 'import sys; print("cp%d%d" % sys.version_info[:2])')-*))
CXX_FILES := $(shell find src tools benchmarks tests -name '*.cpp' -o -name '*.hpp' -o -name '*.h')

.PHONY: ready programs checks wheel demo test test-arena test-around test-gpu validate long faults promise races sanitize sanitize-threads \
  sanitize-memory sanitize-python fuzz lint alone format bench count clean

# Without optimisation a sanitizer takes ten times as long; with more of it, the compiler does. Sources are compiled
# together, as in the package.
CLANG = CXX=$$(sh tools/get_clang.sh)
CMAKE_CHECKED = $(BIN)/cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
  -DCMAKE_BUILD_TYPE=Checked -DCMAKE_CXX_FLAGS_CHECKED="-O1 -g1" -DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF \
  -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 -DARENA_TESTS=ON \
  -DPython_EXECUTABLE=$(abspath $(BIN))/python -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir)
FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 0  # another one each time
FUZZ_READERS := own text rmm torch saved
FUZZ_TARGETS := core decoders $(FUZZ_READERS)
# Python and its libraries are not built with the sanitizer, which keeps no count of what they leave behind.
SANITIZED_PYTHON = ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
  LD_PRELOAD="$$(sh tools/sanitizer_libraries.sh build/asan)" PYTHONPATH=build/asan/package $(BIN)/python
# Not again with another CuPy: that is Python alone.
CHECKED_TESTS := tests/arena --ignore=tests/arena/test_cupy13.py
SANITIZED_TESTS := $(CHECKED_TESTS) tests/trace/test_trace.py tests/fuzz
# Those in which threads meet. One has more arenas at once than the sanitizer leaves addresses for; one is the random work on
# plain segments, of one thread, and takes long. The other files of tests/arena have one thread, or their threads are in
# programs of their own. Commands that replay, in tests/trace, lack addresses again. Of tests/simulated/test_processes.py some
# count mappings of the kernel, which the sanitizer adds to, end in the middle of work, or look at how a child dies, which it
# changes.
THREADED_TESTS := tests/arena/test_free_threading.py tests/arena/test_streams.py tests/arena/test_rebacking.py \
  tests/arena/test_stream_objects.py tests/arena/test_plain.py tests/simulated/test_streams.py tests/simulated/test_capture.py \
  tests/simulated/test_machines.py \
  --deselect tests/arena/test_free_threading.py::test_arenas_that_threads_make_are_recorded_each_in_a_file_of_its_own \
  --deselect tests/arena/test_plain.py::test_blocks_live_on_plain_segments_under_the_cap

demo: $(VENV)/.package
	@mkdir -p build
	$(BIN)/arena demo --force --save build/arena-demo.html

# Two halves that take about as long. Where PYTEST_FLAGS choose, there may be nothing to run in one of them.
test: test-arena test-around
TESTS_OF_ARENA := tests/arena tests/reliability tests/trace
PYTEST = $(BIN)/python -m pytest $(PYTEST_FLAGS)
NONE_CHOSEN = $(if $(PYTEST_FLAGS),|| [ $$? = 5 ])

test-arena: $(VENV)/.package $(VENV)/.test $(VENV)/.cupy13 build/arena_load
	$(PYTEST) $(TESTS_OF_ARENA) $(NONE_CHOSEN)

test-around: $(VENV)/.package $(VENV)/.test $(VENV)/torch/_memory_viz.py
	@sh tools/get_chromium.sh
	$(PYTEST) $(addprefix --ignore=,$(TESTS_OF_ARENA)) $(NONE_CHOSEN)

validate: $(VENV)/.package $(VENV)/.test
	ARENA_VALIDATE=1 $(BIN)/python -m pytest -q -p no:cacheprovider $(CHECKED_TESTS) $(PYTEST_FLAGS)

# The package beside a tree in which its compiled parts were built.
define PACKAGE
rm -rf $(@D)/package && mkdir $(@D)/package && cp -r python/arena $(@D)/package/
cp $(@D)/src/bindings/_core*.so $(@D)/src/cudasim/libcudasim.so $(@D)/package/arena/
endef

# TEST_GPU_FLAGS="--help" lists the options.
DRIVER ?= cuda
test-gpu: $(VENV)/.package $(VENV)/.test
	$(BIN)/python -m tests.gpu.run --driver $(DRIVER) $(TEST_GPU_FLAGS)

faults: $(VENV)/.package $(VENV)/.test
	ARENA_FAULTS=all $(BIN)/python -m pytest -q tests/reliability/test_faults.py $(PYTEST_FLAGS)

promise: $(VENV)/.package $(VENV)/.test
	ARENA_PROMISE=all $(BIN)/python -m pytest -q tests/reliability/test_promise.py $(PYTEST_FLAGS)

races: $(VENV)/.package $(VENV)/.test
	ARENA_RACES=whole $(BIN)/python -m pytest -q tests/reliability/test_races.py $(PYTEST_FLAGS)

sanitize: sanitize-threads sanitize-memory

sanitize-threads: build/tsan/.built $(VENV)/.test
	build/tsan/tests/native/native_tests
	TSAN_OPTIONS=suppressions=tests/native/tsan.supp LD_PRELOAD="$$(sh tools/sanitizer_libraries.sh build/tsan)" \
	  PYTHONPATH=build/tsan/package $(BIN)/python -m pytest -q -p no:cacheprovider --capture=sys $(THREADED_TESTS) $(PYTEST_FLAGS)

build/tsan/.built: $(VENV)/.build $(SOURCES) $(wildcard tests/native/*.?pp tests/native/CMakeLists.txt)
	$(CMAKE_CHECKED) -B build/tsan -DARENA_SANITIZE=thread >/dev/null
	$(BIN)/cmake --build build/tsan --target native_tests _core cudasim
	$(PACKAGE)
	@touch $@

sanitize-memory: build/asan/.built
	UBSAN_OPTIONS=print_stacktrace=1 build/asan/tests/native/native_tests

sanitize-python: build/asan/.built $(VENV)/.test
	$(SANITIZED_PYTHON) -m pytest -q -p no:cacheprovider $(SANITIZED_TESTS) $(PYTEST_FLAGS)

# One tree for all that AddressSanitizer and UBSan look at: the tests of the compiled parts, the module, and fuzzing.
build/asan/.built: $(VENV)/.build $(SOURCES) $(wildcard tests/native/*.?pp tests/fuzz/*.cpp tests/*/CMakeLists.txt)
	$(CLANG) $(CMAKE_CHECKED) -B build/asan -DARENA_SANITIZE=address,undefined -DARENA_FUZZ=ON >/dev/null
	$(BIN)/cmake --build build/asan --target native_tests _core cudasim fuzz_core fuzz_decoders
	$(PACKAGE)
	@touch $@

# libFuzzer's own way to run several at a time is for one target; make's is for several.
fuzz: build/asan/.built $(VENV)/.fuzz
	$(MAKE) -j2 $(addprefix fuzz-,$(FUZZ_TARGETS))

# New inputs are kept in build/; those that reach new code belong into the corpus: tests/fuzz/README.md.
FUZZ_OPTIONS = -max_total_time=$(FUZZ_SECONDS) -seed=$(strip $(FUZZ_SEED)) -timeout=30 -rss_limit_mb=2048 -artifact_prefix=build/fuzz/crashes/$*- \
  -verbosity=0 -print_final_stats=1 build/fuzz/found/$* tests/fuzz/corpus/$*
fuzz-%: build/asan/.built $(VENV)/.package $(VENV)/.fuzz
	@mkdir -p build/fuzz/found/$* build/fuzz/crashes
	$(if $(filter $*,$(FUZZ_READERS)),ARENA_DRIVER=sim $(BIN)/python tests/fuzz/readers.py $*,build/asan/tests/fuzz/fuzz_$*) \
	  $(FUZZ_OPTIONS)

# Steps of random programs, and seconds of load.
ARENA_STEPS ?= 1500000
ARENA_LOAD_SECONDS ?= 600
long: export ARENA_STEPS := $(ARENA_STEPS)
long: export ARENA_LOAD_SECONDS := $(ARENA_LOAD_SECONDS)
long: $(VENV)/.package $(VENV)/.test build/arena_load
	$(BIN)/python -m pytest tests/reliability/test_model.py tests/reliability/test_load.py $(PYTEST_FLAGS)

# What was built for the tests, installed with what it asks for, away from the sources.
wheel: $(VENV)/.package
	rm -rf build/tried && $(PYTHON) -m venv build/tried
	build/tried/bin/python -m pip --disable-pip-version-check -q install --no-compile build/wheel/*.whl
	for file in libcudasim.so py.typed _core.pyi _report/page/page.html; do \
	  $(BIN)/python -m zipfile -l build/wheel/*.whl | grep -q "arena/$$file" || { echo "the wheel has no $$file"; exit 1; }; done
	cd build/tried && ARENA_DRIVER=sim bin/python -c "import arena; print(arena.__version__, arena.driver().devices())"

# For CI: all of this before `checks`. With -j make passes over what waits for something else, and comes back to it when all
# others have begun: so what others wait for comes first.
ready: $(VENV)/.build $(VENV)/.test $(VENV)/.cupy13 $(VENV)/.package programs $(VENV)/torch/_memory_viz.py $(VENV)/.lint $(VENV)/.fuzz
ready: build/tsan/.built build/arena_load

# Those that are no packages of Python; one after the other, as the system installs them.
programs:
	@sh tools/get_chromium.sh
	@sh tools/get_clang.sh >/dev/null
	@command -v valgrind >/dev/null || apt-get -qq install -y valgrind

# What is built, then the longest first: short ones at the end leave no lane without work for long.
checks: build/asan/.built build/core_benchmark
checks: test sanitize-python $(addprefix fuzz-,$(FUZZ_TARGETS)) validate sanitize-threads lint wheel count sanitize-memory demo

alone: $(VENV)/.build
	for file in $$(find src -name '*.cpp'); do $$(sh tools/get_clang.sh) -std=c++20 -fsyntax-only -Isrc \
	  $$($(BIN)/python -m pybind11 --includes) $$file || exit 1; done

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
# FREE_THREADED_PYTHON: a Python without a GIL that has arena, for what two threads do
bench: $(VENV)/.package $(VENV)/.test $(VENV)/.bench build/core_benchmark
	$(BIN)/python benchmarks/all.py $(if $(CUPY_PYTHON),--cupy-python $(CUPY_PYTHON)) \
	  $(if $(FREE_THREADED_PYTHON),--free-threaded-python $(FREE_THREADED_PYTHON))

count: $(VENV)/.package build/core_benchmark
	@command -v valgrind >/dev/null || apt-get -qq install -y valgrind
	$(BIN)/python benchmarks/instructions.py

# From what the package was built of, and in its tree, one after the other.
define BUILD_IN_TREE
flock $(VENV)/.tree sh -c '$(BIN)/cmake -DARENA_BENCHMARKS=ON -DARENA_TESTS=ON $(TREE) >/dev/null && $(BIN)/cmake --build $(TREE) --target $(@F)'
cp $$(find $(TREE) -type f -name $(@F)) $@
endef
build/core_benchmark: $(VENV)/.package benchmarks/core.cpp benchmarks/CMakeLists.txt
	$(BUILD_IN_TREE)
build/arena_load: $(VENV)/.package $(wildcard tests/native/load/*)
	$(BUILD_IN_TREE)

clean:
	rm -rf $(VENV) build dist

$(VENV)/.python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "arena needs Python 3.10 or later")'
	$(PYTHON) -m venv $(VENV) || { echo "no virtual environment: install Python's venv module (Debian: python3-venv)"; exit 1; }
	@touch $@

$(VENV)/.build: $(VENV)/.python pyproject.toml
	$(INSTALL) 'cmake>=3.20' ninja $$($(BIN)/python tools/extras.py requires dependencies)
	@touch $@

$(VENV)/.package: $(VENV)/.build $(SOURCES)
	rm -rf build/wheel
	$(PIP) wheel --no-build-isolation --no-deps -w build/wheel --config-settings=cmake.define.ARENA_WERROR=$(if $(CI),ON,OFF) .
	$(INSTALL) --no-deps --force-reinstall build/wheel/*.whl
	@touch $@

$(VENV)/.test: $(VENV)/.python pyproject.toml
	$(INSTALL) $$($(BIN)/python tools/extras.py test clients readers)
	@touch $@

# An older CuPy beside the other, in a folder of its own. There is none for Python 3.14 and later.
$(VENV)/.cupy13: $(VENV)/.python
	$(INSTALL) --upgrade --no-deps --target $(VENV)/cupy13 'cupy-cuda12x>=13,<14; python_version < "3.14"' fastrlock
	@touch $@

# PyTorch's reader of its memory snapshots, which needs nothing else of it: one file of its wheel.
$(VENV)/torch/_memory_viz.py: $(VENV)/.python
	$(BIN)/python tools/take_from_wheel.py torch==2.13.0 torch/cuda/_memory_viz.py $@

$(VENV)/.bench: $(VENV)/.python pyproject.toml
	$(INSTALL) $$($(BIN)/python tools/extras.py bench)
	@touch $@

# atheris has wheels for some Pythons only; readers.py does without, and says so.
$(VENV)/.fuzz: $(VENV)/.python pyproject.toml
	$(INSTALL) $$($(BIN)/python tools/extras.py fuzz) || echo "atheris could not be installed: see tests/fuzz/README.md"
	@touch $@

$(VENV)/.lint: $(VENV)/.python pyproject.toml
	$(INSTALL) $$($(BIN)/python tools/extras.py lint)
	@touch $@
