// Finds and opens the driver that was asked for. Owns the process's default driver.
#pragma once

#include <memory>
#include <string>

#include "driver/choice.hpp"
#include "driver/driver.hpp"

namespace arena {

struct Opened {
  std::shared_ptr<Driver> driver;
  // Why `auto` chose the simulated driver, without a full stop. Empty if it did not, or if the program asked for the
  // simulated driver in another way.
  std::string why_simulated;
};

// Throws OpenError. Each call opens the driver again, so a call can succeed once the problem is fixed.
Opened open_driver(const Choice& choice);

// The process's default driver; null before there is one. keep_default_driver() sets it once and returns it, so threads
// that race to open one end up with the same driver.
std::shared_ptr<Driver> default_driver();
std::shared_ptr<Driver> keep_default_driver(std::shared_ptr<Driver> opened);

// Whether code in this process that opens libcuda.so.1 gets a real driver.
bool is_real_driver_here();

// Call before arena itself loads the simulated driver, which may then own the name libcuda.so.1. That alone does not
// mean that the program asked for a simulation.
void before_simulated_library_loads();

// The program asked for a simulation: if the simulated driver owns the name, `auto` uses it and gives no reason.
void want_simulation();

// For the exit of the interpreter: streams of the simulated driver may still be running, and must not call into Python
// any more. Does nothing if the library is not loaded.
void stop_host_functions();

// The path of libcudasim.so. The package sets it on import: only it knows how it was installed.
void set_simulated_library(const std::string& path);

}  // namespace arena
