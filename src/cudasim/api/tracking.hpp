// What copies, fills and launches do to the marks of known and unknown memory (machine/values.hpp).
#pragma once

#include <functional>

#include "cudasim/api/copies.hpp"
#include "cudasim/api/launches.hpp"

namespace cudasim {

// Whether the work is queued by a call of its own, or is a node of a graph that is launched.
enum class Origin { kCall, kGraph };
using Tracker = std::function<void(Call&, Work&)>;

// A copy moves marks within device memory, and makes what it writes there from elsewhere known. To the host it delivers
// zeros instead of leftovers, or what the calling thread expects.
Tracker copy_tracker(Copy copy, const ContextRef& context, Origin origin);
// What is filled is known.
Tracker fill_tracker(const Fill& fill);

// Makes unknown whatever a kernel may write, as its parameters and its module say: no code runs here. Without known
// parameters, that is all device memory.
void forget_written(Machine& m, const FunctionState& function, const Arguments& arguments);
// The same for a kernel of a graph, whoever launches it.
void track_kernel_node(Call& call, Work& work);
// Kernels can write their module's variables without being given them, but not its constants.
void forget_variables(Machine& m, const ModuleState& module);

}  // namespace cudasim
