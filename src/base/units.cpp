#include "base/units.hpp"

#include <cmath>
#include <cstddef>
#include <cstdio>
#include <iterator>

namespace arena {

std::string format_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  // The rounded value decides the unit, so that one byte below 1 GiB reads "1 GiB" and not "1024 MiB".
  while (std::round(value * 100) >= 1024 * 100 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.2f", value);
  std::string number = text;
  number.erase(number.find_last_not_of('0') + 1);
  if (number.back() == '.') number.pop_back();
  return number + " " + kUnits[unit];
}

std::string format_share(std::uint64_t part, std::uint64_t whole) {
  std::string first = format_bytes(part);
  const std::string second = format_bytes(whole);
  const auto unit_of = [](const std::string& text) { return text.substr(text.find(' ')); };
  if (unit_of(first) == unit_of(second)) first.erase(first.find(' '));
  return first + " of " + second;
}

}  // namespace arena
