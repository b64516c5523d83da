// How many different values a tensor of integers can have: elements that are chosen from a known tensor, no matter which, have
// no more than that. So the classes of boxes are few, although it is not known which boxes there are.
#pragma once

#include "host.hpp"

namespace arena::values {

// An operation chose elements of `source`; its result is not known.
void note_chosen(const at::Tensor& result, const at::Tensor& source);

// The number of different values, at most.
std::int64_t distinct_at_most(const at::Tensor& tensor);

void forget_distinct(std::uint64_t address);  // something else was written there, or it was freed

}  // namespace arena::values
