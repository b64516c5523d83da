#include "bindings/slow_path.hpp"

#include <atomic>
#include <optional>
#include <utility>

#include "bindings/buffer.hpp"
#include "bindings/cupy.hpp"
#include "bindings/failure.hpp"
#include "bindings/lines.hpp"
#include "bindings/moving.hpp"
#include "bindings/standstill.hpp"
#include "bindings/stream_argument.hpp"
#include "core/arena/trimming.hpp"

namespace py = pybind11;

namespace arena {
namespace {

std::atomic<std::uint64_t> slow_requests{0};

enum class Attempt { kMayBeRepeated, kLast };

// A request, its attempts, and what became of it. Failed attempts leave a Failure, not an exception.
class PendingRequest {
 public:
  PendingRequest(const Source& source, const Wanted& wanted, Product product)
      : core_(source.core),
        device_(source.device),
        size_(wanted.size),
        stream_(wanted.stream),
        any_stream_(wanted.any_stream),
        huge_size_(py::reinterpret_borrow<py::object>(wanted.huge_size)),
        product_(product),
        line_(lines::current(wanted.framework)) {}

  // Keeps the owner of the stream, if there is one. False if there is not enough memory.
  bool try_first(std::shared_ptr<void> stream_owner) {
    Block* block = nullptr;
    {
      const WithoutGil without_gil;
      if (stream_owner) core_->keep_stream(stream_, std::move(stream_owner));
      block = try_with({.line = line_, .is_last = false, .any_stream = any_stream_});
    }
    return own(block);
  }

  // Moves live data if that is allowed, could help, and a moment for it is found. The GIL is held while data moves.
  bool retry(const py::object& may_move, Attempt attempt) {
    AllocateOptions options{.line = line_, .is_last = attempt == Attempt::kLast, .any_stream = any_stream_};
    const bool could_help = !may_move.is(py::handle(Py_False)) && is_compactable();
    const std::optional<QuiescenceCheck> moment = could_help ? find_moment(*core_, may_move) : std::nullopt;
    if (moment) {
      options.moving = Moving::kAllowed;
      options.is_quiescent = *moment ? &*moment : nullptr;
      return own(try_with(options));
    }
    Block* block = nullptr;
    {
      const WithoutGil without_gil;
      if (could_help) core_->expect_moving(Moving::kForbidden);
      block = try_with(options);
    }
    return own(block);
  }

  // Of the last attempt.
  RequestFailure failure() const {
    if (!failure_) throw UsageError("the request did not fail");
    return {.failure = *failure_,
            .size = huge_size_,
            .error_type = product_ == Product::kCupyPointer ? cupy::error_type() : py::handle()};
  }

  py::object take() { return std::exchange(made_, {}); }

 private:
  bool is_compactable() {
    const WithoutGil without_gil;
    return core_->is_compactable();
  }

  // Null if the attempt failed. Touches nothing of Python.
  Block* try_with(const AllocateOptions& options) {
    try {
      return &core_->allocate(size_, stream_, options);
    } catch (const OutOfMemory& error) {
      failure_ = error.failure();
      return nullptr;
    }
  }

  // Wraps the block before any Python code can run: an exception in a signal handler must find it owned.
  bool own(Block* block) {
    if (block == nullptr) return false;
    PyObject* made = product_ == Product::kCupyPointer && cupy::is_connected()
                         ? cupy::new_pointer(core_, *block, size_, device_)
                         : buffers::new_buffer(core_, *block, size_, device_);
    if (made == nullptr) throw py::error_already_set();
    made_ = py::reinterpret_steal<py::object>(made);
    return true;
  }

  std::shared_ptr<Arena> core_;
  int device_;
  Bytes size_;
  cu::Stream stream_;
  bool any_stream_;
  py::object huge_size_;
  Product product_;
  Line line_;
  std::optional<Failure> failure_;
  py::object made_;
};

// The arena.Arena of a core, looked up when Python has to be called. None if it is gone.
class Pool {
 public:
  Pool(PyObject* known, const Arena& core) : pool_(py::reinterpret_borrow<py::object>(known)), id_(core.id()) {}

  void call(const char* method) {
    if (!get().is_none()) pool_.attr(method)();
  }
  const py::object& get() {
    if (!pool_) pool_ = py::module_::import("arena._pool.registry").attr("find_arena")(id_);
    return pool_;
  }

 private:
  py::object pool_;
  std::uint64_t id_;
};

// Collects garbage, calls the on_oom() functions, and tries again after each; raises OutOfMemoryError. Near the recursion limit
// there is no frame left for that: the first failure is raised then.
void make_room(Pool& pool, const std::shared_ptr<PendingRequest>& request) {
  const RequestFailure first = request->failure();
  try {
    if (!pool.get().is_none()) {
      pool.get().attr("_make_room")(request);
      return;
    }
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_RecursionError)) throw;
  }
  raise(out_of_memory(first));
  throw py::error_already_set();
}

py::object serve(const Source& source, PyObject* known, const Wanted& wanted, Product product) {
  if (!source.core) throw_closed();
  Pool pool(known, *source.core);
  std::shared_ptr<void> owner;
  if (wanted.stream_object != nullptr && owns_stream(wanted.stream_object)) {
    owner = keep_alive(py::reinterpret_borrow<py::object>(wanted.stream_object));
  }
  if (source.is_auto_compact)
    source.core->expect_moving(moving_if(is_only_thread()));  // inspecting others takes too long
  if (source.watched != Watched::kNone) pool.call("_rearm_pressure");
  const auto request = std::make_shared<PendingRequest>(source, wanted, product);
  if (!request->try_first(std::move(owner))) make_room(pool, request);
  py::object made = request->take();
  if (source.expects_virtual_memory && source.core->is_plain()) pool.call("_warn_of_platform");
  if (source.watched != Watched::kNone) pool.call("_fire_pressure");
  return made;
}

}  // namespace

PyObject* allocate_slowly(const Source& source, PyObject* pool, const Wanted& wanted, Product product) {
  slow_requests.fetch_add(1, std::memory_order_relaxed);
  try {
    return serve(source, pool, wanted, product).release().ptr();
  } catch (const std::exception&) {
    raise_thrown();
    return nullptr;
  }
}

void bind_slow_path(py::module_& module) {
  py::class_<PendingRequest, std::shared_ptr<PendingRequest>>(module, "PendingRequest",
                                                              "A request that failed at the first attempt.")
      .def(
          "retry",
          [](PendingRequest& request, const py::object& may_move, bool is_last) {
            return request.retry(may_move, is_last ? Attempt::kLast : Attempt::kMayBeRepeated);
          },
          py::arg("may_move"), py::kw_only(), py::arg("is_last"),
          "Try again; whether that succeeded. `may_move` is a bool, or a function that finds a Standstill.")
      .def_property_readonly("failure", &PendingRequest::failure, "Why the last attempt failed.");
  module.def(
      "slow_requests", [] { return slow_requests.load(std::memory_order_relaxed); },
      "Requests of this process so far that the quick path could not serve.");
}

}  // namespace arena
