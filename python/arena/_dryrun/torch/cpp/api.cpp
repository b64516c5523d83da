// What Python calls, through ctypes. PyTorch calls the last two.
#include "blocks.hpp"
#include "marks.hpp"
#include "notes.hpp"
#include "wrap.hpp"

#define ARENA_EXPORT extern "C" __attribute__((visibility("default")))

using namespace arena::values;

// Returns the number of operators that compute on the host from now on, or -1 without a simulated driver.
ARENA_EXPORT int arena_values_begin(int all, const Listener* given) {
  if (!find_marks()) return -1;
  mode = all != 0 ? Mode::kAll : Mode::kControl;
  if (given != nullptr) listener = *given;
  return wrap_all();
}

// Whether the calling thread is in a copy to the host that is noted already.
ARENA_EXPORT int arena_values_reading() { return Reading::is_on() ? 1 : 0; }

// Follows PyTorch's own allocator, once it is there: from PyTorch's first use of the device on.
ARENA_EXPORT int arena_values_follow() { return follow_allocator() ? 1 : 0; }

// Fills in what was sized by numbers that are not known; returns how many there are.
ARENA_EXPORT int arena_values_sized(SizedTotals* totals, int room) { return sized_totals(totals, room); }

ARENA_EXPORT void arena_values_connect(PluggedAllocate allocate, PluggedFree free) { connect_plugged(allocate, free); }
ARENA_EXPORT void* arena_values_alloc(std::size_t size, int device, void* stream) {
  return allocate_plugged(size, device, stream);
}
ARENA_EXPORT void arena_values_free(void* address, std::size_t size, int device, void* stream) {
  release_plugged(address, size, device, stream);
}
