// The rules of ARENA_DRIVER.
#include "driver/select.hpp"

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>

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

Library open_library(const std::string& name, const std::string& described, const std::string& advice) {
  std::string why;
  std::optional<Library> library = Library::open(name, why);
  if (library) return std::move(*library);
  throw OpenError("dlopen", cu::Result::kSuccess, described + " could not be opened: " + why, advice);
}

std::shared_ptr<Driver> open_real() {
  Library library = open_library(kRealName, std::string(kRealName) + " (looked for on the system's library path)",
                                 "Install NVIDIA's driver, or set ARENA_DRIVER=sim to use the simulated one.");
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
  std::string path = simulated_path();
  return std::make_shared<Driver>(
      open_library(path, "the simulated driver '" + path + "'",
                   "It is part of the package on Linux: install cuda-arena again, or use ARENA_DRIVER=cuda."));
}

std::shared_ptr<Driver> open_path(const std::string& path) {
  // Another real driver, from a compatibility package for example, is meant to have the name for itself.
  bool simulated = std::filesystem::path(path).filename().string().starts_with("libcudasim");
  if (simulated) leave_name_to_real_driver();
  return std::make_shared<Driver>(
      open_library(path, "the driver library " + path,
                   "Name an existing driver library in ARENA_DRIVER, or one of auto, cuda and sim."));
}

// Whose the driver's name is in this process.
enum class Owner { kNobody, kReal, kSimulated };

Owner owner_of_name() {
  std::string why;
  const std::optional<Library> library = Library::open(kRealName, why);
  if (!library) return Owner::kNobody;
  return library->symbol("cudasimError") != nullptr ? Owner::kSimulated : Owner::kReal;
}

void say_once_why_simulated(const std::string& reason) {
  static std::atomic_flag said = ATOMIC_FLAG_INIT;
  if (said.test_and_set()) return;
  std::string line =
      "arena: using the simulated CUDA driver, because " + reason + ". Set ARENA_DRIVER=sim to silence this line.\n";
  std::fputs(line.c_str(), stderr);
}

std::shared_ptr<Driver> open_auto() {
  try {
    return open_real();
  } catch (const OpenError& real) {
    try {
      // With arena.sim.enable() or in another way. Before we load it, which gives it the name.
      const bool asked_for = owner_of_name() == Owner::kSimulated;
      std::shared_ptr<Driver> driver = open_simulated();
      if (!asked_for) say_once_why_simulated(real.reason());
      return driver;
    } catch (const OpenError& simulated) {
      throw OpenError(
          real.call(), static_cast<cu::Result>(real.code()),
          "neither the real driver nor the simulated one can be used: " + real.reason() + "; " + simulated.reason(),
          "Mend one of the two and choose it with ARENA_DRIVER=cuda or ARENA_DRIVER=sim.", real.name());
    }
  }
}

}  // namespace

bool is_real_driver_here() { return owner_of_name() == Owner::kReal; }

void set_simulated_library(const std::string& path) {
  SimulatedLibrary& library = simulated_library();
  std::lock_guard lock(library.mutex);
  library.path = path;
}

std::shared_ptr<Driver> open_driver(const Choice& choice) {
  switch (choice.kind) {
    case Choice::Kind::kCuda:
      return open_real();
    case Choice::Kind::kSim:
      return open_simulated();
    case Choice::Kind::kPath:
      return open_path(choice.path);
    case Choice::Kind::kAuto:
      break;
  }
  return open_auto();
}

std::shared_ptr<Driver> default_driver() {
  // No lock is held while a driver opens: it takes long, and a fork meanwhile would leave the child a lock that nobody
  // holds. Threads that race each open one, which is harmless, and the first to finish provides it.
  static std::atomic<const std::shared_ptr<Driver>*> opened{nullptr};
  const std::shared_ptr<Driver>* first = opened.load();
  if (first) return *first;
  auto mine = std::make_unique<const std::shared_ptr<Driver>>(open_driver(choice_from_environment()));
  if (opened.compare_exchange_strong(first, mine.get())) first = mine.release();
  return *first;
}

}  // namespace arena
