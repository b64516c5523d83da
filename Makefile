# `make help` prints the text after `##` of each target, and `##@` as a headline. Targets that install system packages say
# so; the scripts that do it are in .ci/.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q
INSTALL := flock $(VENV)/.lock $(PIP) install --no-compile
SOURCES := CMakeLists.txt pyproject.toml $(shell find src python -type f -not -name '*.pyc')
TREE = $(firstword $(wildcard build/$(shell $(BIN)/python -c 'import sys; print("cp%d%d" % sys.version_info[:2])')-*))
CXX_FILES := $(shell find src tools benchmarks tests -name '*.cpp' -o -name '*.hpp' -o -name '*.h')

CORES := $(shell nproc)

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint format hooks bench docs pictures wheel clean test-gpu test-torch validate faults promise races long sanitize \
  sanitize-threads sanitize-memory sanitize-python fuzz alone count ready programs checks accuracy accuracy-others
.PHONY: test-parts chromium

# Without optimisation a sanitizer takes ten times as long; with more than this, the compiler does. Unity build, as in the
# package.
CLANG = CXX=$$(sh .ci/get_clang.sh)
CMAKE_CHECKED = $(BIN)/cmake -S . -G Ninja -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja \
  -DCMAKE_BUILD_TYPE=Checked -DCMAKE_CXX_FLAGS_CHECKED="-O1 -g1" -DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF \
  -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=0 -DARENA_TESTS=ON \
  -DPython_EXECUTABLE=$(abspath $(BIN))/python -Dpybind11_DIR=$$($(BIN)/python -m pybind11 --cmakedir)
FUZZ_SECONDS ?= 60
FUZZ_SEED ?= 0  # 0: a new one each time
FUZZ_READERS := own text rmm torch saved
FUZZ_TARGETS := core decoders $(FUZZ_READERS)
# Leaks are not detected: Python and its libraries are not built with the sanitizer.
SANITIZED_PYTHON = ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
  LD_PRELOAD="$$(sh tools/sanitizer_libraries.sh build/asan)" PYTHONPATH=build/asan/package $(BIN)/python
# Without the tests of another CuPy, which exercise only Python code.
CHECKED_TESTS := tests/arena --ignore=tests/arena/test_cupy13.py
# Left out: a test that forks while other threads allocate. AddressSanitizer's own allocator, which Python uses there, does not
# survive that: its lock stays taken in the child if another thread held it (clang 14; a stack of the child showed it).
SANITIZED_TESTS := $(CHECKED_TESTS) $(addprefix tests/trace/test_,recording.py replay.py damaged_files.py other_formats.py) tests/fuzz \
  --deselect tests/arena/test_torch_functions.py::test_a_forked_child_drops_tensors_while_the_parents_threads_allocate
# The tests with concurrent threads. Left out: one that needs more arenas at once than the sanitizer leaves addresses for, and
# one long single-threaded test. The other files of tests/arena have one thread, or run their threads in child processes.
# tests/trace would need too many addresses as well. Some tests of tests/simulated/test_processes.py count kernel mappings,
# exit in the middle of work, or check how a child dies, all of which the sanitizer changes.
THREADED_TESTS := tests/arena/test_free_threading.py tests/arena/test_streams.py tests/arena/test_rebacking.py \
  tests/arena/test_stream_objects.py tests/arena/test_plain_segments.py tests/arena/test_upstream.py \
  tests/simulated/test_streams.py tests/simulated/test_capture.py tests/simulated/test_machines.py \
  tests/simulated/test_values.py tests/simulated/test_value_reads.py \
  --deselect tests/arena/test_free_threading.py::test_arenas_made_by_several_threads_are_recorded_to_separate_files \
  --deselect tests/arena/test_plain_segments.py::test_blocks_live_on_plain_segments_under_the_cap

##@ Every day

help: ## List the targets
	@awk -F ':.*## ' '/^##@ /{print "\n" substr($$0, 5)} /^[a-z-]+:.*## /{printf "  make %-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.package ## Build everything into .venv and run `arena demo`
	@mkdir -p build
	$(BIN)/arena demo --force --save build/arena-demo.html

# One pytest per folder, as many at a time as there are cores. (pytest-xdist would need only one, but its workers have a second
# thread, beside which arena does not move live data.) With PYTEST_FLAGS a folder may have no tests to run.
test: ## Build, and run the tests on all cores (installs Chromium if you are root)
	@$(MAKE) --no-print-directory --keep-going --output-sync=target $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(CORES)) test-parts

# The longest first, so that no core is idle for long at the end.
LONGEST := reliability arena cli simulated report
FOLDERS := $(sort $(foreach file,$(wildcard tests/*/test_*.py tests/*/*/test_*.py),$(word 2,$(subst /, ,$(file)))))
PARTS := $(LONGEST) $(filter-out $(LONGEST),$(FOLDERS)) top
PYTEST = $(BIN)/python -m pytest --durations=5 --durations-min=2
NONE_CHOSEN = $(if $(PYTEST_FLAGS),|| [ $$? = 5 ])
test-parts: $(addprefix test-part-,$(PARTS))
test-part-%: $(VENV)/.package $(VENV)/.test $(VENV)/torch/_memory_viz.py chromium
	$(PYTEST) -q -m "not slow" $(PYTEST_FLAGS) $(if $(filter top,$*),tests/test_*.py,tests/$*) $(NONE_CHOSEN)

# Without it the tests of the report's page are skipped, or fail if CI is set.
chromium:
	@sh .ci/get_chromium.sh

test-slow: $(VENV)/.package $(VENV)/.test $(VENV)/.cupy13 $(VENV)/.nvrtc build/arena_load ## Run the tests marked as slow, which `make test` leaves to CI
	$(PYTEST) -m slow $(PYTEST_FLAGS) $(NONE_CHOSEN)

lint: $(VENV)/.package $(VENV)/.lint ## Run every linter that CI runs: format, types, declarations, workflows
	$(BIN)/pre-commit run --all-files
	cd "$$(mktemp -d)" && $(abspath $(BIN))/python -m mypy.stubtest arena._core
	$(BIN)/python tools/check_abi.py --self-test

format: $(VENV)/.lint ## Fix the formatting
	$(BIN)/ruff check --fix . ; $(BIN)/ruff format .
	$(BIN)/clang-format -i $(CXX_FILES)

hooks: $(VENV)/.lint ## Lint what changed before each commit, from now on (pre-commit)
	$(BIN)/pre-commit install

# CUPY_PYTHON: a Python whose CuPy has a CUDA runtime, to compare arena with CuPy's own pool
# FREE_THREADED_PYTHON: a Python without a GIL that has arena, for what two threads do
bench: $(VENV)/.package $(VENV)/.test $(VENV)/.bench build/core_benchmark ## Run the benchmarks, into docs/benchmarks.md
	$(BIN)/python benchmarks/all.py $(if $(CUPY_PYTHON),--cupy-python $(CUPY_PYTHON)) \
	  $(if $(FREE_THREADED_PYTHON),--free-threaded-python $(FREE_THREADED_PYTHON))

docs: $(VENV)/.package $(VENV)/.docs ## Build the documentation into build/docs, without warnings
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs build/docs
	@echo "open build/docs/index.html"

pictures: $(VENV)/.package $(VENV)/.test chromium ## Regenerate the pictures of the documents (installs Chromium)
	$(BIN)/python tools/make_pictures.py

# The wheel that the tests use, installed with its dependencies, away from the sources.
wheel: $(VENV)/.package ## Build a wheel into build/wheel, and try it in a new environment
	rm -rf build/tried && $(PYTHON) -m venv build/tried
	build/tried/bin/python -m pip --disable-pip-version-check -q install --no-compile build/wheel/*.whl
	for file in libcudasim.so py.typed _core.pyi _report/page/page.html _dryrun/lib/libcudart.so.13 _dryrun/cupy/include/cupy_thrust.h _dryrun/lib/libcudnn.so.9 _cards/data/t4.toml; do \
	  $(BIN)/python -m zipfile -l build/wheel/*.whl | grep "arena/$$file" >/dev/null || { echo "the wheel has no $$file"; exit 1; }; done
	cd build/tried && ARENA_DRIVER=sim bin/python -c "import arena; print(arena.__version__, arena.driver().devices())"

clean: ## Remove everything that was built and installed
	rm -rf $(VENV) build dist

##@ More tests

validate: $(VENV)/.package $(VENV)/.test ## Test the arena, checking every invariant after every operation
	ARENA_VALIDATE=1 $(BIN)/python -m pytest -q -p no:cacheprovider $(CHECKED_TESTS) $(PYTEST_FLAGS)

# A copy of the package with the compiled parts of a build tree.
define PACKAGE
rm -rf $(@D)/package && mkdir $(@D)/package && cp -r python/arena $(@D)/package/
cp $(@D)/src/bindings/_core*.so $(@D)/src/cudasim/libcudasim.so $(@D)/package/arena/
endef

# TEST_GPU_FLAGS="--help" lists the options.
DRIVER ?= cuda
test-gpu: $(VENV)/.package $(VENV)/.test ## Run the conformance tests on a GPU (DRIVER=sim: simulated)
	$(BIN)/python -m tests.gpu.run --driver $(DRIVER) $(TEST_GPU_FLAGS)

# In an environment of its own; with VERSIONS="2.8 2.9.1", the adapter's tests in one for each. tests/torch/README.md says more.
TORCH := build/torch
VERSIONS ?=
test-torch: $(VENV)/.package $(if $(VERSIONS),,$(TORCH)/.ready) ## Run PyTorch dry (5 GB); VERSIONS="2.8 2.15": the adapter, on each
ifneq ($(VERSIONS),)
	$(PYTHON) tools/test_torch_versions.py --wheel build/wheel/*.whl $(VERSIONS) $(if $(PYTEST_FLAGS),-- $(PYTEST_FLAGS))
else
	$(TORCH)/bin/python -m pip --disable-pip-version-check -q install --no-compile --no-deps --force-reinstall build/wheel/*.whl
	TEST_TORCH=1 $(TORCH)/bin/python -m pytest --durations=5 -p no:cacheprovider tests/torch tests/dryrun/test_torch.py $(PYTEST_FLAGS)
endif

$(TORCH)/.ready: pyproject.toml | $(VENV)/.python
	$(PYTHON) -m venv $(TORCH)
	$(TORCH)/bin/python -m pip --disable-pip-version-check -q install --no-compile $$($(BIN)/python tools/extras.py torch dependencies)
	@$(TORCH)/bin/python -c 'import sys, torch; torch.version.cuda or sys.exit(f"the index gave PyTorch {torch.__version__}, which is built without CUDA: remove $(TORCH), and use an index that has the CUDA build (a folder in PIP_FIND_LINKS may have others)")'
	@touch $@

# Each environment takes 5 to 7 GB. Python 3.11 for all of them: older PyTorch has no wheels for newer ones.
accuracy: $(VENV)/.package ## Repeat published measurements dry, into docs/accuracy.md (5 GB a PyTorch)
	$(BIN)/python benchmarks/accuracy/run.py --arena build/wheel/*.whl $(if $(ONLY),--only $(ONLY))

accuracy-others: ## Other tools on some of these programs, after `make accuracy`
	$(BIN)/python benchmarks/accuracy/compare.py $(if $(ONLY),--only $(ONLY))

faults: $(VENV)/.package $(VENV)/.test ## Fail every driver call with every error; minutes (CI: the first 50 calls)
	ARENA_FAULTS=all $(BIN)/python -m pytest -q tests/reliability/test_faults.py $(PYTEST_FLAGS)

promise: $(VENV)/.package $(VENV)/.test ## Compare 100,000 requests with an exact model; a minute (CI: a tenth)
	ARENA_PROMISE=all $(BIN)/python -m pytest -q tests/reliability/test_promise.py $(PYTEST_FLAGS)

races: $(VENV)/.package $(VENV)/.test ## Play whole traces under the race checker; up to an hour (CI: a part)
	ARENA_RACES=whole $(BIN)/python -m pytest -q tests/reliability/test_races.py $(PYTEST_FLAGS)

sanitize: sanitize-threads sanitize-memory ## Test the compiled parts under all sanitizers (installs clang)

sanitize-threads: build/tsan/.built $(VENV)/.test ## ... ThreadSanitizer alone, including the tests with threads
	build/tsan/tests/native/native_tests
	TSAN_OPTIONS=suppressions=tests/native/tsan.supp LD_PRELOAD="$$(sh tools/sanitizer_libraries.sh build/tsan)" \
	  PYTHONPATH=build/tsan/package $(BIN)/python -m pytest -q -p no:cacheprovider --capture=sys $(THREADED_TESTS) $(PYTEST_FLAGS)

build/tsan/.built: $(VENV)/.build $(SOURCES) $(wildcard tests/native/*.?pp tests/native/CMakeLists.txt)
	$(CMAKE_CHECKED) -B build/tsan -DARENA_SANITIZE=thread >/dev/null
	$(BIN)/cmake --build build/tsan --target native_tests _core cudasim
	$(PACKAGE)
	@touch $@

sanitize-memory: build/asan/.built ## ... AddressSanitizer and UBSan alone (installs clang if you are root)
	UBSAN_OPTIONS=print_stacktrace=1 build/asan/tests/native/native_tests

sanitize-python: build/asan/.built $(VENV)/.test ## Test the arena and the file readers under both (installs clang)
	$(SANITIZED_PYTHON) -m pytest -q -p no:cacheprovider $(SANITIZED_TESTS) $(PYTEST_FLAGS)

# One build tree for everything under AddressSanitizer and UBSan: the native tests, the module, and fuzzing.
build/asan/.built: $(VENV)/.build $(SOURCES) $(wildcard tests/native/*.?pp tests/fuzz/*.cpp tests/*/CMakeLists.txt)
	$(CLANG) $(CMAKE_CHECKED) -B build/asan -DARENA_SANITIZE=address,undefined -DARENA_FUZZ=ON >/dev/null
	$(BIN)/cmake --build build/asan --target native_tests _core cudasim fuzz_core fuzz_decoders
	$(PACKAGE)
	@touch $@

# libFuzzer can run several jobs of one target in parallel; make runs several targets.
fuzz: build/asan/.built $(VENV)/.fuzz ## Look for inputs that crash arena, FUZZ_SECONDS per target (installs clang)
	$(MAKE) -j2 $(addprefix fuzz-,$(FUZZ_TARGETS))

# New inputs are kept in build/; add those that reach new code to the corpus: tests/fuzz/README.md.
FUZZ_OPTIONS = -max_total_time=$(FUZZ_SECONDS) -seed=$(strip $(FUZZ_SEED)) -timeout=30 -rss_limit_mb=2048 -artifact_prefix=build/fuzz/crashes/$*- \
  -verbosity=0 -print_final_stats=1 build/fuzz/found/$* build/fuzz/corpus/$*
fuzz-%: build/asan/.built $(VENV)/.package $(VENV)/.fuzz
	@mkdir -p build/fuzz/found/$* build/fuzz/crashes
	@$(BIN)/python -m tests.fuzz.corpus unpack $* >/dev/null
	$(if $(filter $*,$(FUZZ_READERS)),ARENA_DRIVER=sim $(BIN)/python -m tests.fuzz.readers $*,build/asan/tests/fuzz/fuzz_$*) \
	  $(FUZZ_OPTIONS)

# Steps of random programs, and seconds of load.
ARENA_STEPS ?= 1500000
ARENA_LOAD_SECONDS ?= 600
long: export ARENA_STEPS := $(ARENA_STEPS)
long: export ARENA_LOAD_SECONDS := $(ARENA_LOAD_SECONDS)
long: $(VENV)/.package $(VENV)/.test build/arena_load ## Random programs and load, for about an hour
	$(BIN)/python -m pytest tests/reliability/test_model.py tests/reliability/test_load.py $(PYTEST_FLAGS)

alone: $(VENV)/.build ## Compile each source alone, to check its includes (installs clang)
	for file in $$(find src -name '*.cpp'); do $$(sh .ci/get_clang.sh) -std=c++20 -fsyntax-only -Isrc \
	  $$($(BIN)/python -m pybind11 --includes) $$file || exit 1; done

count: $(VENV)/.package $(VENV)/.test build/core_benchmark ## Count the instructions of the hit path (installs valgrind if you are root)
	@sh .ci/get_valgrind.sh
	$(BIN)/python benchmarks/instructions.py

##@ For CI

# Everything that `checks` needs. With -j, make skips targets that wait for another one, and returns to them last: so what
# others wait for comes first.
ready: $(VENV)/.build $(VENV)/.test $(VENV)/.cupy13 $(VENV)/.nvrtc $(VENV)/.package programs $(VENV)/torch/_memory_viz.py $(VENV)/.lint $(VENV)/.fuzz $(VENV)/.docs
ready: build/tsan/.built build/arena_load ## Install and build what the other targets need (installs system packages)

# One after the other, since the system's package manager has a lock.
programs: chromium ## Install Chromium, clang and valgrind (system packages)
	@sh .ci/get_clang.sh >/dev/null
	@sh .ci/get_valgrind.sh

# Builds first, then the longest targets.
checks: build/asan/.built build/core_benchmark ## Everything CI runs beside `make test`; pass -j (installs system packages)
checks: test-slow sanitize-python $(addprefix fuzz-,$(FUZZ_TARGETS)) validate sanitize-threads lint docs wheel count sanitize-memory demo

# Built in the package's own build tree, one after the other.
define BUILD_IN_TREE
flock $(VENV)/.tree sh -c '$(BIN)/cmake -DARENA_BENCHMARKS=ON -DARENA_TESTS=ON $(TREE) >/dev/null && $(BIN)/cmake --build $(TREE) --target $(@F)'
cp $$(find $(TREE) -type f -name $(@F)) $@
endef
build/core_benchmark: $(VENV)/.package benchmarks/core.cpp benchmarks/CMakeLists.txt
	$(BUILD_IN_TREE)
build/arena_load: $(VENV)/.package $(wildcard tests/native/load/*)
	$(BUILD_IN_TREE)

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

# An older CuPy in a folder of its own. There is none for Python 3.14 and later.
$(VENV)/.cupy13: $(VENV)/.python
	$(INSTALL) --upgrade --no-deps --target $(VENV)/cupy13 'cupy-cuda12x>=13,<14; python_version < "3.14"' fastrlock
	@touch $@

# NVIDIA's compiler, beside the others: it changes what programs do that look for one.
$(VENV)/.nvrtc: $(VENV)/.python
	$(INSTALL) --upgrade --no-deps --target $(VENV)/nvrtc 'nvidia-cuda-nvrtc>=13,<14'
	@touch $@

# PyTorch's reader of its memory snapshots: one file of its wheel, which needs nothing else.
$(VENV)/torch/_memory_viz.py: $(VENV)/.python
	$(BIN)/python tools/take_from_wheel.py torch==2.13.0 torch/cuda/_memory_viz.py $@

$(VENV)/.docs: $(VENV)/.python pyproject.toml
	$(INSTALL) $$($(BIN)/python tools/extras.py docs)
	@touch $@

$(VENV)/.bench: $(VENV)/.python pyproject.toml
	$(INSTALL) $$($(BIN)/python tools/extras.py bench)
	@touch $@

# atheris has wheels for some Pythons only; without it readers.py says so and fuzzes at random.
$(VENV)/.fuzz: $(VENV)/.python pyproject.toml
	$(INSTALL) $$($(BIN)/python tools/extras.py fuzz) || echo "atheris could not be installed: see tests/fuzz/README.md"
	@touch $@

$(VENV)/.lint: $(VENV)/.python pyproject.toml
	$(INSTALL) $$($(BIN)/python tools/extras.py lint)
	@touch $@
