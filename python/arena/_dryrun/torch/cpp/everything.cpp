// One translation unit: PyTorch's headers are read once. Those of autograd come last: they declare all of its operators,
// whose names would be confused with ours.
#include "api.cpp"
#include "blocks.cpp"
#include "flags.cpp"
#include "host.cpp"
#include "kernels.cpp"
#include "marks.cpp"
#include "memory.cpp"
#include "notes.cpp"
#include "operators.cpp"
#include "wrap.cpp"
//
#include "doing.cpp"
#include "ledger.cpp"
#include "ledger_api.cpp"
#include "lines.cpp"
#include "modules.cpp"
#include "taken.cpp"
