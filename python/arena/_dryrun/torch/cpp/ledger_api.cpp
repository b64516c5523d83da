// What Python calls of the ledger, through ctypes, with Python's lock. PyTorch calls the last two.
#include <string>

#include "doing.hpp"
#include "ledger.hpp"
#include "lines.hpp"
#include "modules.hpp"
#include "python.hpp"
#include "taken.hpp"

#define ARENA_EXPORT extern "C" __attribute__((visibility("default")))

using namespace arena::ledger;

ARENA_EXPORT void arena_ledger_begin(const char* frameworks, const char* installed, const char* python,
                                     const char* optimizers, int depth) {
  set_lines({.frameworks = frameworks, .installed = installed, .python = python, .optimizers = optimizers}, depth);
}

// Returns 1 if PyTorch's allocator is followed from now on.
ARENA_EXPORT int arena_ledger_follow(unsigned long long entries) { return follow(entries) ? 1 : 0; }

ARENA_EXPORT ArenaPyObject* arena_ledger_watch(ArenaPyObject* original, NameModule name) {
  return watched_call(original, name);
}
ARENA_EXPORT void arena_ledger_number(unsigned long long module, int number) {
  number_module(reinterpret_cast<const void*>(module), number);
}
ARENA_EXPORT void arena_ledger_forget(unsigned long long module) {
  forget_module(reinterpret_cast<const void*>(module));
}

ARENA_EXPORT void arena_ledger_label(unsigned long long address, int kind, unsigned module, unsigned line) {
  label(address, static_cast<Kind>(kind), module, line);
}
ARENA_EXPORT unsigned arena_ledger_here() { return where(false).line; }
ARENA_EXPORT unsigned long long arena_ledger_peak() { return event_of_peak(); }
ARENA_EXPORT long long arena_ledger_live() { return most_live(); }
ARENA_EXPORT void arena_ledger_clearing(int on) { clearing_workspaces(on != 0); }

// The text stays until the next call.
ARENA_EXPORT const char* arena_ledger_facts() {
  static auto& text = *new std::string;
  text = as_json();
  return text.c_str();
}

ARENA_EXPORT void arena_ledger_connect(Allocate allocate, Free release) { connect(allocate, release); }
ARENA_EXPORT void* arena_ledger_alloc(std::size_t size, int device, void* stream) {
  return allocate(size, device, stream);
}
ARENA_EXPORT void arena_ledger_free(void* address, std::size_t size, int device, void* stream) {
  release(address, size, device, stream);
}
