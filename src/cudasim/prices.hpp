// What a call would have cost on a real device, in microseconds. Third-party measurements for handles of 2 MiB, and
// assumptions where nobody measured: docs/simulated-driver.md.
#pragma once

#include <cstdint>
#include <string_view>

#include "cudasim/settings.hpp"

namespace cudasim {

// `bytes` is the size of the memory that the call creates, 0 for calls that create none.
double price(Prices table, std::string_view function, std::uint64_t bytes);

}  // namespace cudasim
