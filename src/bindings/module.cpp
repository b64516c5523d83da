// The extension module arena._core. Nothing here opens a driver: that happens at the first call that needs one.
#include "bindings/bindings.hpp"
#include "bindings/torch/functions.hpp"

// Free-threaded Python may keep its GIL off: what is shared below is immutable or guarded by itself.
PYBIND11_MODULE(_core, module, pybind11::mod_gil_not_used()) {
  module.doc() = "The compiled half of arena. Use the names in arena itself: those in here may change.";
  module.attr("__version__") = ARENA_VERSION;
  arena::bind_errors(module);
  arena::bind_driver(module);
  arena::bind_timing(module);
  arena::bind_lines(module);
  arena::bind_threads(module);
  arena::bind_signals(module);
  arena::bind_streams(module);
  arena::bind_stats(module);
  arena::bind_watch(module);
  arena::bind_failure(module);
  arena::bind_arena(module);
  arena::bind_pool_state(module);
  arena::bind_slow_path(module);
  arena::bind_trace(module);
  arena::buffers::bind(module);
  arena::bind_allocator(module);
  arena::cupy::bind(module);
  arena::torch::bind(module);
}
