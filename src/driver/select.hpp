// Finds and opens the driver that was asked for. Keeps the one driver of the process.
#pragma once

#include <memory>
#include <string>

#include "driver/choice.hpp"
#include "driver/driver.hpp"

namespace arena {

// Throws OpenError. Each call opens anew, so a failure can be mended and tried again.
std::shared_ptr<Driver> open_driver(const Choice& choice);

// The process's own driver, opened by ARENA_DRIVER at the first call that succeeds.
std::shared_ptr<Driver> default_driver();

// Whether programs in this process that open libcuda.so.1 get another driver than the simulated one.
bool is_real_driver_here();

// Where libcudasim.so lies. The package says so when it is imported: only it knows how it was installed.
void set_simulated_library(const std::string& path);

}  // namespace arena
