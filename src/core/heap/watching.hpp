// When the heap is sampled for its watch: before live bytes turn, and when what is reserved has changed. For heaps that have a
// watch.
#pragma once

#include "core/heap/watch.hpp"

namespace arena {

class Heap;

enum class SampleCost { kBounded, kAny };
void sample_before(Heap& heap, Watch::Trend next, SampleCost cost = SampleCost::kBounded);
void sample_reserved(Heap& heap);

}  // namespace arena
