// Whether this is still the process in which something was made: after a fork the child has copies of locks that are never
// released, and of addresses that the driver does not let it use.
#pragma once

#include <cstdint>

namespace arena {

std::uint32_t forks();  // between the process that loaded the library and this one

}  // namespace arena
