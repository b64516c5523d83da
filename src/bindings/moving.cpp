#include "bindings/moving.hpp"

#include <memory>

#include "bindings/bindings.hpp"
#include "bindings/standstill.hpp"

namespace py = pybind11;

namespace arena {

// Queued work is waited for without the GIL, because a host function of the program may be part of it. So the other threads
// are inspected before that wait, and must have slept all the time.
std::optional<QuiescenceCheck> find_moment(Arena& arena, const py::object& may_move) {
  constexpr int kTries = 5;
  const auto wait = [&] {
    const WithoutGil without_gil;
    arena.synchronize();
  };
  if (py::isinstance<py::bool_>(may_move)) {
    if (!may_move.cast<bool>()) return std::nullopt;
    wait();
    return QuiescenceCheck{};
  }
  for (int i = 0; i < kTries; ++i) {
    const py::object found = may_move();
    if (found.is_none()) break;
    const auto standstill = found.cast<std::shared_ptr<Standstill>>();
    wait();
    if (standstill->holds()) return [standstill] { return standstill->holds(); };
  }
  return std::nullopt;
}

}  // namespace arena
