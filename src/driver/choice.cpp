#include "driver/choice.hpp"

#include <cstdlib>

#include "base/errors.hpp"

namespace arena {
namespace {

// A bare file name is refused: otherwise every typo would be taken for a library.
bool is_path(const std::string& text) {
#ifdef _WIN32
  return text.find_first_of("/\\") != std::string::npos;
#else
  return text.find('/') != std::string::npos;
#endif
}

}  // namespace

Choice parse_choice(const std::string& text, const std::string& source) {
  if (text == "auto") return {Choice::Kind::kAuto, {}};
  if (text == "cuda") return {Choice::Kind::kCuda, {}};
  if (text == "sim") return {Choice::Kind::kSim, {}};
  if (is_path(text)) return {Choice::Kind::kPath, text};
  throw UsageError(source + "='" + text +
                   "' names no driver: use auto, cuda, sim, or the path of a driver library (with a slash), "
                   "such as /opt/driver/libcuda.so.1 or ./libcuda.so.1");
}

Choice choice_from_environment() {
  const char* text = std::getenv("ARENA_DRIVER");
  if (!text || !*text) return {};
  return parse_choice(text, "ARENA_DRIVER");
}

}  // namespace arena
