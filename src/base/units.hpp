// Sizes as people read them. For messages only: nothing parses what is written here.
#pragma once

#include <cstdint>
#include <string>

namespace arena {

// "8 GiB", "1.5 MiB", "512 B": at most two decimals, rounded to the nearest.
std::string format_bytes(std::uint64_t bytes);

}  // namespace arena
