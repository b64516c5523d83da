// Human-readable sizes. For messages only: nothing parses them.
#pragma once

#include <cstdint>
#include <string>

namespace arena {

// "8 GiB", "1.5 MiB", "512 B": at most two decimals, rounded to the nearest.
std::string format_bytes(std::uint64_t bytes);
// "8 of 10 MiB", "512 KiB of 10 MiB": a shared unit is printed once.
std::string format_share(std::uint64_t part, std::uint64_t whole);

}  // namespace arena
