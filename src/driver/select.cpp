// The rules of ARENA_DRIVER.
#include "driver/select.hpp"

#include <atomic>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>

#ifndef _WIN32
#include <unistd.h>
#endif

namespace arena {
namespace {

#ifdef _WIN32
constexpr const char* kRealName = "nvcuda.dll";
#else
constexpr const char* kRealName = "libcuda.so.1";
#endif

// Leaked, so that a thread that outlives main() never meets a destroyed one.
struct SimulatedLibrary {
  std::mutex mutex;
  std::string path;
};

SimulatedLibrary& simulated_library() {
  static SimulatedLibrary& library = *new SimulatedLibrary;
  return library;
}

std::string simulated_path() {
  SimulatedLibrary& library = simulated_library();
  std::lock_guard lock(library.mutex);
  return library.path;
}

// The simulated driver calls itself libcuda.so.1 (its SONAME), so that other people's programs run on it. But the
// dynamic loader gives that name to whichever library of it was loaded first, for everyone in the process. Where a real
// driver exists the name must stay with it: a program that opens libcuda.so.1 after us did not ask for a simulation. So
// the real one is loaded first, and left uninitialised: nobody has asked to use it either.
void leave_name_to_real_driver() {
  std::string why;
  if (std::optional<Library> real = Library::open(kRealName, why)) real->keep_loaded();
}

// Whose the driver's name is in this process.
enum class Owner { kNobody, kReal, kSimulated };

Owner owner_of_name(std::string& why) {
  const std::optional<Library> library = Library::open(kRealName, why);
  if (!library) return Owner::kNobody;
  return library->symbol("cudasimError") != nullptr ? Owner::kSimulated : Owner::kReal;
}

Owner owner_of_name() {
  std::string why;
  return owner_of_name(why);
}

std::atomic<bool> is_named_by_us{false};  // the simulated driver has the name because arena loaded it
std::atomic<bool> is_wanted{false};

Library open_library(const std::string& name, const std::string& described, const std::string& advice) {
  std::string why;
  std::optional<Library> library = Library::open(name, why);
  if (library) return std::move(*library);
  throw OpenError("dlopen", cu::Result::kSuccess, described + " could not be opened: " + why, advice);
}

std::shared_ptr<Driver> open_real() {
  std::string why;
  std::optional<Library> opened = Library::open(kRealName, why);
  if (!opened) {
    const bool missing = Library::is_missing(kRealName, why);
    throw OpenError("dlopen", cu::Result::kSuccess,
                    std::string(kRealName) + " (looked for on the system's library path) could not be opened: " + why,
                    std::string(missing ? "Install" : "Reinstall") + " NVIDIA's driver, " + kOrSimulate);
  }
  Library& library = *opened;
  if (void* simulated = library.symbol("cudasimError")) {
    throw OpenError("dlopen", cu::Result::kSuccess,
                    std::string(kRealName) + " is the simulated driver in this process: " + library.path_of(simulated) +
                        " was loaded under that name first",
                    "Use ARENA_DRIVER=sim, or start anew and open the real driver before the simulated one.");
  }
  return std::make_shared<Driver>(std::move(library));
}

std::shared_ptr<Driver> open_simulated() {
  leave_name_to_real_driver();
  before_simulated_library_loads();
  std::string path = simulated_path();
  return std::make_shared<Driver>(
      open_library(path, "the simulated driver '" + path + "'",
                   "It is part of the package on Linux: install cuda-arena again, or use ARENA_DRIVER=cuda."));
}

std::shared_ptr<Driver> open_path(const std::string& path) {
  // Another real driver, from a compatibility package for example, is meant to have the name for itself.
  bool simulated = std::filesystem::path(path).filename().string().starts_with("libcudasim");
  if (simulated) {
    leave_name_to_real_driver();
    before_simulated_library_loads();
  }
  return std::make_shared<Driver>(
      open_library(path, "the driver library " + path,
                   "Name an existing driver library in ARENA_DRIVER, or one of auto, cuda and sim."));
}

// What shows that NVIDIA's driver is installed although its library was not found: a container that was started without
// it, or half an installation. Empty if nothing does.
std::string sign_of_driver() {
#ifndef _WIN32
  // The kernel module, as seen from a container too; Jetson's; the device file; and where Windows puts it in WSL.
  for (const char* path : {"/proc/driver/nvidia/version", "/sys/module/nvidia", "/sys/module/nvgpu", "/dev/nvidiactl",
                           "/usr/lib/wsl/lib/libcuda.so.1"}) {
    if (access(path, F_OK) == 0) return path;
  }
#endif
  return {};
}

Opened simulate(const std::string& why) {
  try {
    return {open_simulated(), why};
  } catch (const OpenError& simulated) {
    throw OpenError(simulated.call(), static_cast<cu::Result>(simulated.code()),
                    "neither NVIDIA's driver nor the simulated one can be used: " + why + "; " + simulated.reason(),
                    "Repair one of the two and choose it with ARENA_DRIVER=cuda or ARENA_DRIVER=sim.",
                    simulated.name());
  }
}

// A simulation in place of a driver that fails would look like a healthy one. So it is for machines without any.
Opened open_auto() {
  std::string why;
  const Owner owner = owner_of_name(why);
  const bool asked_for = owner == Owner::kSimulated && (is_wanted || !is_named_by_us);
  if (asked_for) return {open_simulated(), {}};
  const std::string sign = sign_of_driver();
  const bool missing = owner == Owner::kNobody && Library::is_missing(kRealName, why);
  if (missing && !sign.empty()) {
    throw OpenError("dlopen", cu::Result::kSuccess,
                    "NVIDIA's driver is installed (" + sign + " exists), but " + kRealName +
                        " was not found on the system's library path",
                    std::string("In a container, start it with access to the GPU (docker run --gpus all); otherwise "
                                "install the driver's CUDA library, or add its folder to LD_LIBRARY_PATH, ") +
                        kOrSimulate);
  }
  const bool installed = owner == Owner::kReal || (owner == Owner::kNobody && !missing) || !sign.empty();
  if (installed) return {open_real(), {}};
  return simulate("no NVIDIA driver is installed (" + std::string(kRealName) + " was not found)");
}

}  // namespace

bool is_real_driver_here() { return owner_of_name() == Owner::kReal; }

void set_simulated_library(const std::string& path) {
  SimulatedLibrary& library = simulated_library();
  std::lock_guard lock(library.mutex);
  library.path = path;
}

void before_simulated_library_loads() {
  if (!Library::is_loaded(kRealName)) is_named_by_us = true;
}

void stop_host_functions() {
  const std::optional<Library> library = Library::find_loaded(simulated_path());
  auto* stop = library ? library->function<void()>("cudasimStopHostFunctions") : nullptr;
  if (stop) stop();
}

void want_simulation() { is_wanted = true; }

Opened open_driver(const Choice& choice) {
  switch (choice.kind) {
    case Choice::Kind::kCuda:
      return {open_real(), {}};
    case Choice::Kind::kSim:
      return {open_simulated(), {}};
    case Choice::Kind::kPath:
      return {open_path(choice.path), {}};
    case Choice::Kind::kAuto:
      break;
  }
  return open_auto();
}

namespace {

// No lock is held while a driver opens: it takes long, and a fork meanwhile would leave the child a lock that nobody
// holds. Threads that race each open one, which is harmless, and the first to finish provides it.
std::atomic<const std::shared_ptr<Driver>*> kept{nullptr};

}  // namespace

std::shared_ptr<Driver> default_driver() {
  const std::shared_ptr<Driver>* first = kept.load();
  return first ? *first : nullptr;
}

std::shared_ptr<Driver> keep_default_driver(std::shared_ptr<Driver> opened) {
  const std::shared_ptr<Driver>* first = nullptr;
  auto mine = std::make_unique<const std::shared_ptr<Driver>>(std::move(opened));
  if (kept.compare_exchange_strong(first, mine.get())) first = mine.release();
  return *first;
}

}  // namespace arena
