// Prints a line on standard error. Files, kernels and settings that it quotes may contain anything, so what a terminal
// would obey, or hide, is printed as escapes.
#pragma once

#include <string>
#include <string_view>

namespace cudasim {

// The text as one line: controls, and the marks of Unicode that are invisible or reverse text, as \xNN for each byte.
std::string one_line(std::string_view text);

// Prints "cudasim: " and the text.
void say(std::string_view text);

}  // namespace cudasim
