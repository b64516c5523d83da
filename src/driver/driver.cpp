// Opening and checking a driver, and the messages when that fails.
#include "driver/driver.hpp"

#include <cstdlib>
#include <utility>
#include <vector>

#if __has_include(<unistd.h>)
#include <unistd.h>
#endif

namespace arena {
namespace {

std::string join_missing(const std::vector<std::string>& missing) {
  std::string text = missing.front();
  if (missing.size() > 1) text += " and " + std::to_string(missing.size() - 1) + " more";
  return text;
}

const char* or_empty(const char* text) { return text ? text : ""; }

#if __has_include(<unistd.h>)
const pid_t loader = getpid();
bool is_forked() { return getpid() != loader; }
#else
bool is_forked() { return false; }
#endif

// If the driver was initialised before a fork, by arena or by anything else, it refuses every call of the child. Its
// own message, "not initialised", would be misleading.
void explain_fork(cu::Result result) {
  if (result != cu::Result::kNotInitialized || !is_forked()) return;
  throw UsageError(
      "CUDA was initialised before the process was forked and cannot be used in the child: start processes with the "
      "\"spawn\" method, or use CUDA and create the arena only in the child");
}

// For NVIDIA's driver.
std::string start_advice(cu::Result result) {
  switch (result) {
    case cu::Result::kNoDevice:
      if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES")) {
        return "CUDA_VISIBLE_DEVICES='" + std::string(visible) +
               "' may hide the devices: unset it, or check that nvidia-smi lists what it names";
      }
      return "Check that nvidia-smi lists a device and that a container was started with access to the GPU";
    case cu::Result::kStubLibrary:
      return "This is the CUDA toolkit's stub, which is for linking only: remove its folder from LD_LIBRARY_PATH and "
             "install NVIDIA's driver";
    case cu::Result::kSystemDriverMismatch:
      return "The driver's library and kernel module have different versions: reboot after updating the driver";
    default:
      return "Check that nvidia-smi works";
  }
}

}  // namespace

std::string format_version(int version) {
  return "CUDA " + std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

OpenError::OpenError(std::string call, cu::Result code, const std::string& reason, const std::string& advice,
                     std::string name)
    : DriverError(std::move(call), static_cast<int>(code), reason + ". " + advice, std::move(name)), reason_(reason) {}

Driver::Driver(Library library) : library_(std::move(library)) {
  // All checks that do not change the process come first.
  find_entry();
  FoundFunctions found = find_functions(library_);
  functions_ = found.functions;
  read_version();
  if (!found.missing.empty()) {
    throw OpenError("cuGetProcAddress", cu::Result::kNotFound,
                    path_ + " (" + (version_ ? format_version(version_) : "version unknown") + ") does not have " +
                        join_missing(found.missing),
                    update_advice(), name_of(cu::Result::kNotFound));
  }
  library_.keep_loaded();
  initialise();
}

void Driver::find_entry() {
  void* entry = library_.symbol("cuInit");
  if (!entry) {
    throw OpenError("dlsym", cu::Result::kSuccess, library_.name() + " is not a CUDA driver: it does not have cuInit",
                    "Name a driver library in ARENA_DRIVER, or one of auto, cuda and sim.");
  }
  path_ = library_.path_of(entry);
  simulator_error_ = library_.function<const char*()>("cudasimError");
  if (is_simulated()) virtual_clock_ = library_.function<Clock>("cudasimClock");
}

void Driver::read_version() {
  if (!functions_.cuDriverGetVersion) return;  // it will be among the missing
  cu::Result result = functions_.cuDriverGetVersion(&version_);
  if (result != cu::Result::kSuccess) fail_to_start(result, "cuDriverGetVersion");
  if (version_ >= kOldestVersion) return;
  throw OpenError("cuDriverGetVersion", cu::Result::kCallRequiresNewerDriver,
                  "the driver " + path_ + " is too old: it supports " + format_version(version_) + ", but " +
                      format_version(kOldestVersion) + " is needed",
                  update_advice(), name_of(cu::Result::kCallRequiresNewerDriver));
}

void Driver::initialise() {
  int count = 0;
  cu::Result result = functions_.cuInit(0);
  const char* call = "cuInit";
  if (result == cu::Result::kSuccess) {
    result = functions_.cuDeviceGetCount(&count);
    call = "cuDeviceGetCount";
  }
  if (result == cu::Result::kSuccess && count == 0) result = cu::Result::kNoDevice;
  if (result != cu::Result::kSuccess) fail_to_start(result, call);
}

std::string Driver::update_advice() const {
  const std::string advice = "Update the driver, name another one in ARENA_DRIVER, ";
  return is_simulated() ? "Check CUDASIM_VERSION, or name another driver in ARENA_DRIVER." : advice + kOrSimulate;
}

void Driver::fail_to_start(cu::Result result, const char* call) const {
  explain_fork(result);
  bool no_device = result == cu::Result::kNoDevice;
  std::string reason = no_device ? "the driver " + path_ + " has no device"
                                 : std::string(call) + " failed in " + path_ + ": " + describe(result);
  std::string advice = start_advice(result) + ", " + kOrSimulate;
  if (is_simulated()) {
    // The simulated driver's cuInit rejects bad settings and says which.
    std::string detail = or_empty(simulator_error_());
    if (!detail.empty()) reason += ": " + detail;
    advice = "Check the CUDASIM_* variables and the settings made through arena.sim.";
  }
  throw OpenError(call, result, reason, advice, name_of(result));
}

int Driver::device_count() const {
  int count = 0;
  check(functions_.cuDeviceGetCount(&count), "cuDeviceGetCount");
  return count;
}

void Driver::fail(cu::Result result, const char* call) const {
  explain_fork(result);
  throw DriverError(call, static_cast<int>(result), std::string(call) + " failed: " + describe(result),
                    name_of(result));
}

// The driver's own names first: it may know codes that are newer than our list.
std::string Driver::name_of(cu::Result result) const {
  const char* name = nullptr;
  if (functions_.cuGetErrorName) functions_.cuGetErrorName(result, &name);
  return name ? name : or_empty(cu::error_name(result));
}

std::string Driver::describe(cu::Result result) const {
  const char* text = nullptr;
  if (functions_.cuGetErrorString) functions_.cuGetErrorString(result, &text);
  if (!text) text = or_empty(cu::error_text(result));
  std::string name = name_of(result);
  std::string described =
      (name.empty() ? "unknown result" : name) + " (" + std::to_string(static_cast<int>(result)) + ")";
  return *text ? described + ", " + text : described;
}

}  // namespace arena
