// Listens to PyTorch's own allocator: a block that it gives out holds nothing that is known.
#pragma once

namespace arena::values {

void follow_allocator();

}  // namespace arena::values
