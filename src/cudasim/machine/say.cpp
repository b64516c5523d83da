#include "cudasim/machine/say.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>

namespace cudasim {
namespace {

// How many bytes at the start of the text, which is not empty, must not be printed.
std::size_t unprintable(std::string_view text) {
  const auto byte = [&](std::size_t at) { return at < text.size() ? static_cast<std::uint8_t>(text[at]) : 0u; };
  const unsigned first = byte(0), second = byte(1), third = byte(2);
  const auto is_in = [](unsigned value, unsigned low, unsigned high) { return low <= value && value <= high; };
  if (first < 0x20 || is_in(first, 0x7f, 0xbf)) return 1;            // also of 8-bit controls, which are not UTF-8
  if (first == 0xc2 && (second < 0xa0 || second == 0xad)) return 2;  // the same controls in UTF-8, a soft hyphen
  if (first == 0xd8 && second == 0x9c) return 2;                     // an Arabic mark of direction
  const bool is_mark = first == 0xe2 && ((second == 0x80 && (is_in(third, 0x8b, 0x8f) || is_in(third, 0xa8, 0xae))) ||
                                         (second == 0x81 && is_in(third, 0xa0, 0xaf)));
  if (is_mark || (first == 0xef && second == 0xbb && third == 0xbf)) return 3;
  return 0;
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string found;
  while (!text.empty()) {
    const std::size_t bad = unprintable(text), taken = bad == 0 ? 1 : bad < text.size() ? bad : text.size();
    for (std::size_t i = 0; i < taken; ++i) {
      std::array<char, 5> escape{};
      std::snprintf(escape.data(), escape.size(), "\\x%02x", static_cast<unsigned>(static_cast<std::uint8_t>(text[i])));
      found += bad == 0 ? std::string(1, text[i]) : std::string(escape.data());
    }
    text.remove_prefix(taken);
    while (bad == 0 && !text.empty() &&
           (static_cast<std::uint8_t>(text[0]) & 0xc0) == 0x80) {  // the rest of a character
      found += text[0];
      text.remove_prefix(1);
    }
  }
  return found;
}

void say(std::string_view text) { std::fprintf(stderr, "cudasim: %s\n", one_line(text).c_str()); }

}  // namespace cudasim
