// One translation unit: PyTorch's headers are read once.
#include "marks.cpp"
#include "memory.cpp"
#include "operators.cpp"
#include "flags.cpp"
#include "host.cpp"
#include "notes.cpp"
#include "wrap.cpp"
#include "api.cpp"
