#include "base/errors.hpp"

#include <utility>

namespace arena {

DriverError::DriverError(std::string call, int code, const std::string& text, std::string name)
    : Error(text), call_(std::move(call)), name_(std::move(name)), code_(code) {}

}  // namespace arena
