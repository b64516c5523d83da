#include "runtime/state.hpp"

#include <atomic>
#include <map>
#include <mutex>
#include <type_traits>

namespace cudart {
namespace {

struct Primary {
  bool is_retained = false;
  cu::Context context = nullptr;
};

std::mutex primaries_mutex;
std::atomic<unsigned> resets{0};  // of any device
std::map<int, Primary>& primaries() {
  static auto* const all = new std::map<int, Primary>;  // used while the process exits
  return *all;
}
// Primary contexts that were reset, and their devices.
std::map<cu::Context, int>& ended() {
  static auto* const all = new std::map<cu::Context, int>;
  return *all;
}

// A minor version of CUDA runs on any driver of the same major version.
bool is_too_old(const Driver& found) {
  int version = 0;
  return found.cuDriverGetVersion(&version) == cu::Result::kSuccess && version / 1000 < CUDART_MAJOR;
}

}  // namespace

ThreadState& thread_state() {
  static_assert(std::is_trivially_destructible_v<ThreadState>);
  thread_local constinit ThreadState state;
  return state;
}

Error remember(Error error) {
  if (error != Error::kSuccess) thread_state().last = error;
  return error;
}

Error initialize(const Driver*& found, cu::Context* current) {
  found = driver();
  if (found == nullptr) return Error::kInsufficientDriver;
  // The driver knows best whether it is initialized: a simulated one may have been reset.
  const cu::Result asked = found->cuCtxGetCurrent(current);
  if (asked != cu::Result::kNotInitialized) return error_of(asked);
  if (is_too_old(*found)) return Error::kInsufficientDriver;
  return error_of(found->cuInit(0));
}

Error primary_context(const Driver& found, int device, cu::Context* context) {
  const std::lock_guard lock(primaries_mutex);
  Primary& primary = primaries()[device];
  unsigned flags = 0;
  int is_active = 0;
  const cu::Result asked = found.cuDevicePrimaryCtxGetState(device, &flags, &is_active);
  if (asked != cu::Result::kSuccess) return error_of(asked);
  // Asked for each time: a simulated driver may have been reset, and then the known handle is of a context that is gone.
  const cu::Result retained = found.cuDevicePrimaryCtxRetain(context, device);
  if (retained != cu::Result::kSuccess) return error_of(retained);
  const bool is_known = primary.is_retained && is_active != 0 && primary.context == *context;
  primary = {.is_retained = true, .context = *context};
  return is_known ? error_of(found.cuDevicePrimaryCtxRelease_v2(device)) : Error::kSuccess;
}

void forget_primary_context(int device) {
  const std::lock_guard lock(primaries_mutex);
  const auto known = primaries().find(device);
  if (known == primaries().end()) return;
  ended()[known->second.context] = device;
  primaries().erase(known);
  ++resets;
}

bool may_be_reset() { return thread_state().resets != resets.load(std::memory_order_relaxed); }

Error enter_primary_context(const Driver& found) {
  cu::Context primary = nullptr;
  const unsigned seen = resets;
  Error error = primary_context(found, thread_state().device, &primary);
  if (error == Error::kSuccess) error = error_of(found.cuCtxSetCurrent(primary));
  if (error == Error::kSuccess) thread_state().resets = seen;
  return error;
}

Error enter_if_needed(const Driver& found, cu::Context current) {
  if (current != nullptr) {
    const std::lock_guard lock(primaries_mutex);
    const auto it = ended().find(current);
    if (it == ended().end()) {
      thread_state().resets = resets;
      return Error::kSuccess;
    }
    thread_state().device = it->second;
  }
  return enter_primary_context(found);
}

}  // namespace cudart
