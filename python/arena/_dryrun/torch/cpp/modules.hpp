// Which module of the program (torch.nn.Module) a thread is in.
#pragma once

#include <cstdint>

struct ArenaPyObject;

namespace arena::ledger {

// The number of a module, for one that is called for the first time. `parent` is the number of the module that it is in.
using NameModule = int (*)(ArenaPyObject* module, int parent);

// Returns what to use as Module.__call__ instead of `original`: it does the same, and notes which module runs. No frame of
// Python comes in between, so tracebacks stay as they are. Needs Python's lock, as all functions here.
ArenaPyObject* watched_call(ArenaPyObject* original, NameModule name);

void number_module(const void* module, int number);
void forget_module(const void* module);  // it is gone, and its address may be another's

// Of the calling thread. 0: none.
std::uint32_t current_module();

}  // namespace arena::ledger
