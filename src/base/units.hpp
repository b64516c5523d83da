// Sizes as people read them. For messages only: nothing parses what is written here.
#pragma once

#include <cstdint>
#include <string>

namespace arena {

// "8 GiB", "1.5 MiB", "512 B": at most two decimals, rounded to the nearest.
std::string format_bytes(std::uint64_t bytes);
// "8 of 10 MiB", "512 KiB of 10 MiB": the unit once if it is the same.
std::string format_share(std::uint64_t part, std::uint64_t whole);

}  // namespace arena
