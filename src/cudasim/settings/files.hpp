// Reading the small text files that settings name.
#pragma once

#include <string>
#include <string_view>

namespace cudasim {

// A path for an error: its end if it is long, so that there is room for what is wrong.
std::string shown_path(std::string_view path);

// The content of a regular file. Throws std::invalid_argument that names it, and says `what` it should have been.
std::string read_small_file(const std::string& path, std::size_t largest, std::string_view what);

}  // namespace cudasim
