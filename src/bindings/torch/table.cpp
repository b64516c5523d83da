#include "bindings/torch/table.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "bindings/torch/symbols.hpp"

namespace arena::torch {
namespace {

using Word = const void*;

// Before the functions: the offset to the top of the object, and its type.
constexpr std::size_t kBefore = 2;

std::atomic_ref<Word const*> table_of(void* object) {
  return std::atomic_ref<Word const*>(*static_cast<Word const**>(object));
}

// The whole table that an object has; empty if it is not the expected one.
std::span<const Word> find_table(const void* object, const char* table_name) {
  const Word* start = table_of(const_cast<void*>(object)).load() - kBefore;
  const ExportedObject found = find_exported_object(start);
  if (found.name != table_name || found.size % sizeof(Word) != 0 || found.size <= kBefore * sizeof(Word)) return {};
  const std::span<const Word> table(start, found.size / sizeof(Word));
  return table.front() == nullptr ? table : std::span<const Word>{};  // the object starts where its first base does
}

// The only slot with a function of this name; 0 if there is none, if there are several, or if slots share the function, which
// then has several meanings.
std::size_t find_slot(std::span<const Word> table, const NamesByAddress& names, const char* name) {
  std::size_t found = 0;
  for (std::size_t i = kBefore; i < table.size(); ++i) {
    const auto it = names.find(table[i]);
    if (it == names.end() || std::ranges::find(it->second, name) == it->second.end()) continue;
    if (found != 0) return 0;
    found = i;
  }
  return found != 0 && std::ranges::count(table, table[found]) == 1 ? found : 0;
}

void replace_group(std::span<const Word> table, const NamesByAddress& names, const Group& group, Word* copy,
                   std::vector<std::string>& replaced) {
  std::vector<std::size_t> places;
  for (const Slot& slot : group.slots) places.push_back(find_slot(table, names, slot.name));
  const auto missing = static_cast<std::size_t>(std::ranges::count(places, std::size_t{0}));
  if (places.size() - missing < group.needed) return;
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Slot& slot = group.slots[i];
    if (places[i] == 0) continue;
    if (slot.original != nullptr) *slot.original = const_cast<void*>(table[places[i]]);
    if (slot.function == nullptr) continue;
    copy[places[i]] = slot.function;
    replaced.emplace_back(slot.name);
  }
}

}  // namespace

std::vector<std::string> replace_functions(void* object, const char* table_name, std::span<const Group> groups) {
  const std::span<const Word> table = find_table(object, table_name);
  if (table.empty()) return {};
  const NamesByAddress names = find_names({table.begin() + kBefore, table.end()});
  auto copy = std::make_unique<Word[]>(table.size());
  std::ranges::copy(table, copy.get());
  std::vector<std::string> replaced;
  for (const Group& group : groups) replace_group(table, names, group, copy.get(), replaced);
  if (!replaced.empty()) table_of(object).store(copy.release() + kBefore);  // for good: PyTorch keeps the object
  return replaced;
}

const void* table_of_pytorch(const void* object) { return table_of(const_cast<void*>(object)).load(); }

bool has_table(const void* object, const char* table_name) { return !find_table(object, table_name).empty(); }

}  // namespace arena::torch
