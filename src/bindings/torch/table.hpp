// The virtual table of an object of PyTorch's, with functions of ours in some slots. PyTorch's own table is not changed: the
// object gets a copy. Slots are found by the names of the functions in them, which say what they take, so they may stand
// anywhere. Where anything is unexpected, the slot or the whole object is left as it is.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

namespace arena::torch {

struct Slot {
  const char* name;           // mangled
  void* function;             // to put there; null to leave it
  void** original = nullptr;  // gets PyTorch's function, if not null
};

// Slots that are replaced together or not at all: at least `needed` of them have to be there.
struct Group {
  std::vector<Slot> slots;
  std::size_t needed = 1;
};

// `table_name` is the mangled name of the table that the object has to have. Returns the names of the slots that were replaced.
std::vector<std::string> replace_functions(void* object, const char* table_name, std::span<const Group> groups);

template <typename Function>
void* slot_of(Function* function) {
  return reinterpret_cast<void*>(function);
}
template <typename Function>
void** place_of(Function*& original) {
  return reinterpret_cast<void**>(&original);
}

// Whether an object has exactly this table.
bool has_table(const void* object, const char* table_name);
// The table of an object: an address in the library that has its class.
const void* table_of_pytorch(const void* object);

}  // namespace arena::torch
