// Parses which driver was asked for. Opens nothing.
#pragma once

#include <string>

namespace arena {

struct Choice {
  enum class Kind {
    kAuto,  // the real driver if it has a device, otherwise the simulated one
    kCuda,  // the real driver
    kSim,   // the simulated driver
    kPath,  // the library at `path`
  };
  Kind kind = Kind::kAuto;
  std::string path;
};

// "auto", "cuda", "sim", or a path. `source` names where the text came from in the UsageError for anything else.
Choice parse_choice(const std::string& text, const std::string& source);

// From ARENA_DRIVER; auto if it is not set or empty.
Choice choice_from_environment();

}  // namespace arena
