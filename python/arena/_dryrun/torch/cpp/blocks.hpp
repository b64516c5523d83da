// Listens to PyTorch's allocator: a block that it gives out holds nothing that is known.
#pragma once

#include <cstdint>

namespace arena::values {

// PyTorch's own. False if this one cannot be followed.
bool follow_allocator();

// For other allocators. Called with the allocator's lock held: nothing here may take Python's, or call PyTorch.
void block_taken(std::uint64_t address, std::uint64_t size);
void block_freed(std::uint64_t address);

}  // namespace arena::values
