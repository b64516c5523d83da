// Allocations that come with their addresses: device, managed, host and pool memory share how they are made and freed.
#pragma once

#include "cudasim/machine/calls.hpp"
#include "cudasim/machine/machine.hpp"

namespace cudasim {

// Makes an allocation backed by `physical`, readable and writable for the devices in `devices`.
Range& new_allocation(Machine& m, RangeKind kind, const PhysicalRef& physical, std::uint64_t devices,
                      std::uint64_t alignment);
// Frees an allocation. `call` names it to the race checker; empty if everything was waited for.
void free_allocation(Machine& m, Range& range, std::string_view call);
// Waits for all work of the context that a plain allocation belongs to. That need not be the current one, nor need
// there be one: an address tells whose it is.
void wait_for_owner(Call& call, const Range& range);
// Frees the allocation that begins at an address, after a call that waited for all that may touch it.
Result free_after_wait(std::uint64_t address);
// Frees the plain allocations of a context that ends.
void free_allocations(Machine& m, cu::Context context);

inline constexpr std::uint64_t kAllDevices = ~std::uint64_t{0};

}  // namespace cudasim
