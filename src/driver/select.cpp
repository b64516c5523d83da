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

// Leaked, so that a thread that outlives main() never uses a destroyed one.
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

// The simulated driver's SONAME is libcuda.so.1, so that other programs run on it. But the dynamic loader resolves that
// name to the first such library loaded, for the whole process. Where there is a real driver, it must keep the name: a
// program that opens libcuda.so.1 after us did not ask for a simulation. So the real one is loaded first. It stays
// uninitialised: the program did not ask for that driver either.
void leave_name_to_real_driver() {
  std::string why;
  if (std::optional<Library> real = Library::open(kRealName, why)) real->keep_loaded();
}

// Which driver owns the name libcuda.so.1 in this process.
enum class Owner { kNone, kReal, kSimulated };

Owner owner_of_name(std::string& why) {
  const std::optional<Library> library = Library::open(kRealName, why);
  if (!library) return Owner::kNone;
  return library->symbol("cudasimError") != nullptr ? Owner::kSimulated : Owner::kReal;
}

Owner owner_of_name() {
  std::string why;
  return owner_of_name(why);
}

std::atomic<bool> is_named_by_us{false};  // the simulated driver owns the name because arena loaded it
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
                    std::string(kRealName) + " (searched on the system's library path) could not be opened: " + why,
                    std::string(missing ? "Install" : "Reinstall") + " NVIDIA's driver, " + kOrSimulate);
  }
  Library& library = *opened;
  if (void* simulated = library.symbol("cudasimError")) {
    throw OpenError("dlopen", cu::Result::kSuccess,
                    std::string(kRealName) + " is the simulated driver in this process: " + library.path_of(simulated) +
                        " was loaded under that name first",
                    "Use ARENA_DRIVER=sim, or restart the process and open the real driver before the simulated one.");
  }
  return std::make_shared<Driver>(std::move(library));
}

std::shared_ptr<Driver> open_simulated() {
  leave_name_to_real_driver();
  before_simulated_library_loads();
  std::string path = simulated_path();
  return std::make_shared<Driver>(
      open_library(path, "the simulated driver '" + path + "'",
                   "It is part of the package on Linux: reinstall cuda-arena, or use ARENA_DRIVER=cuda."));
}

std::shared_ptr<Driver> open_path(const std::string& path) {
  // Another real driver, for example from a compatibility package, is meant to own the name.
  bool simulated = std::filesystem::path(path).filename().string().starts_with("libcudasim");
  if (simulated) {
    leave_name_to_real_driver();
    before_simulated_library_loads();
  }
  return std::make_shared<Driver>(
      open_library(path, "the driver library " + path,
                   "Name an existing driver library in ARENA_DRIVER, or one of auto, cuda and sim."));
}

// A file that shows that NVIDIA's driver is installed although its library was not found, as in a container started
// without it, or after an incomplete installation. Empty if there is none.
std::string sign_of_driver() {
#ifndef _WIN32
  // The kernel module (also visible in containers), Jetson's module, the device file, and WSL's library.
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
                    "Fix one of the two and choose it with ARENA_DRIVER=cuda or ARENA_DRIVER=sim.", simulated.name());
  }
}

// Falling back to a simulation when the real driver fails would hide the failure. So `auto` simulates only on machines
// without a driver.
Opened open_auto() {
  std::string why;
  const Owner owner = owner_of_name(why);
  const bool asked_for = owner == Owner::kSimulated && (is_wanted || !is_named_by_us);
  if (asked_for) return {open_simulated(), {}};
  const std::string sign = sign_of_driver();
  const bool missing = owner == Owner::kNone && Library::is_missing(kRealName, why);
  if (missing && !sign.empty()) {
    throw OpenError("dlopen", cu::Result::kSuccess,
                    "NVIDIA's driver is installed (" + sign + " exists), but " + kRealName +
                        " was not found on the system's library path",
                    std::string("In a container, start it with access to the GPU (docker run --gpus all); otherwise "
                                "install the driver's CUDA library, or add its folder to LD_LIBRARY_PATH, ") +
                        kOrSimulate);
  }
  const bool installed = owner == Owner::kReal || (owner == Owner::kNone && !missing) || !sign.empty();
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

// No lock is held while a driver opens: that is slow, and a fork at that moment would leave the child with a lock that
// is never released. Threads that race each open one, which is harmless; the first to finish wins.
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
