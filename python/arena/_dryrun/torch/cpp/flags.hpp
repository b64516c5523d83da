// Which elements of a result are known, if some of what it is computed from is not.
#pragma once

#include "host.hpp"

namespace arena::values {

// Fills in `is_known` and `known`. `arguments` are tensors of the device; values that are not known are zeros by now.
void find_known(const c10::OperatorHandle& op, const Traits& traits, const Stack& arguments, HostResults& results);

}  // namespace arena::values
