// When to sample a heap that has a watch: before live bytes turn, and after the reserved bytes have changed.
#pragma once

#include "core/heap/watch.hpp"

namespace arena {

class Heap;

enum class SampleCost { kBounded, kAny };
void sample_before(Heap& heap, Watch::Trend next, SampleCost cost = SampleCost::kBounded);
void sample_reserved(Heap& heap);

}  // namespace arena
