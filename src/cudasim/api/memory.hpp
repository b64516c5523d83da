// Creates and frees allocations that have their own addresses: device, managed, host and pool memory.
#pragma once

#include "cudasim/machine/calls.hpp"
#include "cudasim/machine/machine.hpp"

namespace cudasim {

// Creates an allocation backed by `physical`, readable and writable for the devices in `devices`.
Range& new_allocation(Machine& m, RangeKind kind, const PhysicalRef& physical, std::uint64_t devices,
                      std::uint64_t alignment);
// Frees an allocation. `call` is for the race checker; empty if all work was waited for.
void free_allocation(Machine& m, Range& range, std::string_view call);
// Waits for all work of the context that a plain allocation belongs to. That need not be the current context.
void wait_for_owner(Call& call, const Range& range);
// Frees the allocation that begins at an address, after a call that waited for all work on it.
Result free_after_wait(std::uint64_t address);
// Frees the plain allocations of a context that ends.
void free_allocations(Machine& m, cu::Context context);

inline constexpr std::uint64_t kAllDevices = ~std::uint64_t{0};

}  // namespace cudasim
