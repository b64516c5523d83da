#include "bindings/slow_path.hpp"

#include <atomic>
#include <optional>
#include <utility>

#include "bindings/buffer.hpp"
#include "bindings/cupy.hpp"
#include "bindings/failure.hpp"
#include "bindings/moving.hpp"
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
  PendingRequest(std::shared_ptr<PoolState> state, const PythonRequest& wanted)
      : state_(std::move(state)),
        core_(*state_->core),
        request_(wanted.request),
        huge_size_(py::reinterpret_borrow<py::object>(wanted.huge_size)),
        product_(wanted.product) {}

  // Keeps the owner of the stream, if there is one. False if there is not enough memory.
  bool try_first(std::shared_ptr<void> stream_owner) {
    Block* block = nullptr;
    {
      const WithoutGil without_gil;
      if (stream_owner) core_.keep_stream(request_.stream, std::move(stream_owner));
      state_->rearm_gauges();
      block = try_with(Moving::kForbidden, Attempt::kMayBeRepeated);
      if (block != nullptr) has_news_ = state_->has_news();
    }
    return own(block);
  }
  // The first attempt was made elsewhere.
  void note_first(const Failure& failure) { failure_ = failure; }

  // Moves live data if that is allowed, could help, and a moment for it is found. The GIL is held while data moves.
  bool retry(const py::object& may_move, Attempt attempt) {
    const bool could_help = !may_move.is(py::handle(Py_False)) && is_compactable();
    const std::optional<QuiescenceCheck> moment = could_help ? find_moment(core_, may_move) : std::nullopt;
    if (moment) return own(try_with(Moving::kAllowed, attempt, *moment ? &*moment : nullptr));
    Block* block = nullptr;
    {
      const WithoutGil without_gil;
      if (could_help) core_.expect_moving(Moving::kForbidden);
      block = try_with(Moving::kForbidden, attempt);
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
  // As PoolState's, after a successful attempt.
  bool has_news() {
    if (!has_news_) {
      const WithoutGil without_gil;
      has_news_ = state_->has_news();
    }
    return *has_news_;
  }

 private:
  bool is_compactable() {
    const WithoutGil without_gil;
    return core_.is_compactable();
  }

  // Null if the attempt failed. Touches nothing of Python.
  Block* try_with(Moving moving, Attempt attempt, const QuiescenceCheck* is_quiescent = nullptr) {
    Request request = request_;
    request.moving = moving;
    request.is_last = attempt == Attempt::kLast;
    request.is_quiescent = is_quiescent;
    try {
      return &core_.allocate(request);
    } catch (const OutOfMemory& error) {
      failure_ = error.failure();
      return nullptr;
    }
  }

  // Wraps the block before any Python code can run: an exception in a signal handler must find it owned.
  bool own(Block* block) {
    if (block == nullptr) return false;
    PyObject* made = product_ == Product::kCupyPointer && cupy::is_connected()
                         ? cupy::new_pointer(state_, *block)
                         : buffers::new_buffer(state_, *block, request_.size);
    if (made == nullptr) throw py::error_already_set();
    made_ = py::reinterpret_steal<py::object>(made);
    return true;
  }

  std::shared_ptr<PoolState> state_;
  Arena& core_;
  Request request_;
  py::object huge_size_;
  Product product_;
  std::optional<Failure> failure_;
  std::optional<bool> has_news_;
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

// After a request.
void report_news(PoolState& state, Pool& pool) {
  if (state.has_platform_warning()) pool.call("_warn_of_platform");
  if (state.watched() != Watched::kNone) pool.call("_fire_pressure");
}

py::object finish(PoolState& state, Pool& pool, PendingRequest& request) {
  py::object made = request.take();
  if (request.has_news()) report_news(state, pool);
  return made;
}

py::object serve(const std::shared_ptr<PoolState>& state, PyObject* known, const PythonRequest& wanted) {
  if (!state) throw_closed();
  Pool pool(known, *state->core);
  std::shared_ptr<void> owner;
  if (wanted.stream_object != nullptr && owns_stream(wanted.stream_object)) {
    owner = keep_alive(py::reinterpret_borrow<py::object>(wanted.stream_object));
  }
  state->expect_moving();
  const auto request = std::make_shared<PendingRequest>(state, wanted);
  if (!request->try_first(std::move(owner))) make_room(pool, request);
  return finish(*state, pool, *request);
}

}  // namespace

PyObject* allocate_slowly(const std::shared_ptr<PoolState>& state, PyObject* pool, const PythonRequest& wanted) {
  slow_requests.fetch_add(1, std::memory_order_relaxed);
  try {
    return serve(state, pool, wanted).release().ptr();
  } catch (const std::exception&) {
    raise_thrown();
    return nullptr;
  }
}

Block& allocate_after_failure(PoolState& state, const Request& request, const Failure& failure) {
  slow_requests.fetch_add(1, std::memory_order_relaxed);
  Pool pool(nullptr, *state.core);
  const auto pending = std::make_shared<PendingRequest>(state.shared_from_this(), PythonRequest{.request = request});
  pending->note_first(failure);
  make_room(pool, pending);
  return buffers::take_block(finish(state, pool, *pending).ptr());
}

void report_news(PoolState& state) {
  Pool pool(nullptr, *state.core);
  report_news(state, pool);
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
