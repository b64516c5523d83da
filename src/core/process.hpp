// Detects forks. A child has copies of locks that are never released, and of addresses that the driver does not let it
// use.
#pragma once

#include <cstdint>

namespace arena {

std::uint32_t forks();  // between the process that loaded the library and the current one

}  // namespace arena
