// Finds and opens the driver that was asked for. Keeps the one driver of the process.
#pragma once

#include <memory>
#include <string>

#include "driver/choice.hpp"
#include "driver/driver.hpp"

namespace arena {

struct Opened {
  std::shared_ptr<Driver> driver;
  // Why `auto` took the simulated driver, one sentence without its end. Empty if it did not, or if the program had
  // asked for the simulated driver in another way.
  std::string why_simulated;
};

// Throws OpenError. Each call opens again, so a failure can be put right and tried again.
Opened open_driver(const Choice& choice);

// The process's own driver; null before there is one. It is kept at the first call of keep_default_driver(), which
// returns the one that is kept: threads that race may each open one.
std::shared_ptr<Driver> default_driver();
std::shared_ptr<Driver> keep_default_driver(std::shared_ptr<Driver> opened);

// Whether programs in this process that open libcuda.so.1 get another driver than the simulated one.
bool is_real_driver_here();

// The simulated driver is about to be loaded by arena itself, which may give it the name libcuda.so.1. That alone does
// not mean that the program wants to be simulated.
void before_simulated_library_loads();

// The program asked for a simulation: `auto` takes the simulated driver without a reason, if it has the name.
void want_simulation();

// At the end of the interpreter: streams of the simulated driver may still work, and a function of Python that they would
// call is no longer one then. Does nothing if the library is not loaded.
void stop_host_functions();

// Where libcudasim.so lies. The package says so when it is imported: only it knows how it was installed.
void set_simulated_library(const std::string& path);

}  // namespace arena
