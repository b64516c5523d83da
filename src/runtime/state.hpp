// What the runtime knows about a thread (its device, its last error, its pending launch configurations), and what happens at the door of
// every function: the driver is opened and initialized, a context is made current if the function needs one, and an error is remembered.
#pragma once

#include "runtime/driver.hpp"

namespace cudart {

#define CUDART_EXPORT extern "C" __attribute__((visibility("default")))

struct LaunchShape {
  rt::Dim3 grid;
  rt::Dim3 block;
  std::size_t shared = 0;
  rt::Stream stream = nullptr;
};

// A list, innermost first. Each is freed when it is popped.
struct PushedShape {
  LaunchShape shape;
  PushedShape* outer = nullptr;
};

// Without a destructor: object files launch kernels while the process exits, after a thread's variables are destroyed.
struct ThreadState {
  int device = 0;
  Error last = Error::kSuccess;
  unsigned resets = 0;              // of devices, when this thread last checked its context
  bool null_is_per_thread = false;  // while a _ptsz or _ptds function runs
  PushedShape* pushed = nullptr;    // by <<<...>>>
};
ThreadState& thread_state();

// Errors have the same numbers in both interfaces.
inline Error error_of(cu::Result result) { return static_cast<Error>(result); }
inline Error error_of(Error error) { return error; }

// Keeps an error for cudaGetLastError.
Error remember(Error error);

// Initializes the driver, and returns the context that is current. A process without a driver, or without a device, gets
// that error each time.
Error initialize(const Driver*& found, cu::Context* current);
// Makes the primary context of the thread's device current.
Error enter_primary_context(const Driver& driver);
// Does that if the thread needs it: if no context is current, or one that cudaDeviceReset ended. The runtime shares contexts
// with programs that use the driver directly, so any other stays.
Error enter_if_needed(const Driver& driver, cu::Context current);
// Retains the primary context of a device, once per process, and returns it.
Error primary_context(const Driver& driver, int device, cu::Context* context);
// After cudaDeviceReset: threads that had this context current enter the new one when they next need it.
void forget_primary_context(int device);
// Whether a device was reset since this thread last checked its context.
bool may_be_reset();

// Runs `body(driver)` with the driver initialized.
template <typename Body>
Error with_driver(const Body& body) {
  const Driver* found = nullptr;
  cu::Context current = nullptr;
  Error error = initialize(found, &current);
  if (error == Error::kSuccess) error = error_of(body(*found));
  return remember(error);
}

// Runs `body(driver)` with a current context.
template <typename Body>
Error with_context(const Body& body) {
  const Driver* found = nullptr;
  cu::Context current = nullptr;
  Error error = initialize(found, &current);
  if (error == Error::kSuccess && (current == nullptr || may_be_reset())) error = enter_if_needed(*found, current);
  if (error == Error::kSuccess) error = error_of(body(*found));
  return remember(error);
}

// The stream that a caller means by null.
inline rt::Stream stream_for(rt::Stream stream) {
  return stream == nullptr && thread_state().null_is_per_thread ? cu::per_thread_stream() : stream;
}

// While one lives, null means this thread's default stream.
class PerThreadScope {
 public:
  PerThreadScope() : before_(thread_state().null_is_per_thread) { thread_state().null_is_per_thread = true; }
  ~PerThreadScope() { thread_state().null_is_per_thread = before_; }
  PerThreadScope(const PerThreadScope&) = delete;
  PerThreadScope& operator=(const PerThreadScope&) = delete;

 private:
  bool before_;
};

inline cu::DevicePtr device_ptr(const void* ptr) { return reinterpret_cast<cu::DevicePtr>(ptr); }
inline void* host_ptr(cu::DevicePtr ptr) { return reinterpret_cast<void*>(ptr); }

}  // namespace cudart
