// Modules, libraries, and their kernels and variables. A module belongs to a context; a library to none, and is loaded into
// a context as a module when something of it is first needed there.
#pragma once

#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "cudasim/images/image.hpp"
#include "cudasim/machine/machine.hpp"

namespace cudasim {

struct KernelState;
struct LibraryState;

// Attributes that a program has set on a function or kernel, by their number.
using Tuning = std::array<std::optional<int>, 16>;

struct ModuleState {
  cu::Module handle = nullptr;
  const ContextState* context = nullptr;
  ImageRef image;
  cu::Library library = nullptr;  // that it is a part of; null if it was loaded by itself
  bool unloaded = false;
  struct Variable {
    std::uint64_t address = 0;
    std::uint64_t size = 0;
  };
  std::unordered_map<std::string, Variable> variables;
  std::unordered_map<std::string, cu::Function> functions;
  std::vector<std::uint64_t> memory;  // allocations that hold its variables
  std::vector<Mark> launches;         // that may not have run yet, at most one for each stream
};
using ModuleRef = std::shared_ptr<ModuleState>;

struct FunctionState {
  cu::Function handle = nullptr;
  ModuleRef module;
  KernelInfo info;
  Tuning tuning;
  std::shared_ptr<KernelState> kernel;  // of the library, if it is of one
};
using FunctionRef = std::shared_ptr<FunctionState>;

struct KernelState {
  cu::Kernel handle = nullptr;
  cu::Library library = nullptr;
  KernelInfo info;
  std::map<int, Tuning> tuning;                                           // by device
  std::vector<std::pair<const ContextState*, FunctionState*>> functions;  // one for each context that it is loaded into
};
using KernelRef = std::shared_ptr<KernelState>;

struct LibraryState {
  cu::Library handle = nullptr;
  ImageRef image;
  std::unordered_map<std::string, cu::Kernel> kernels;
  std::vector<std::pair<const ContextState*, ModuleRef>> modules;
  std::unordered_map<std::string, ModuleState::Variable> managed;
  std::uint64_t memory = 0;  // that holds them
};
using LibraryRef = std::shared_ptr<LibraryState>;

// The function of a handle, which may be that of a kernel: then the one for `context`. Throws Refusal.
FunctionState& function_of(Call& call, cu::Function handle, const ContextRef& context);
KernelRef kernel_of(Call& call, cu::Kernel handle);

// Attributes as they are in force.
int function_attribute(const Machine& m, const FunctionState& function, cu::FunctionAttribute what);
int registers_per_warp(const KernelInfo& kernel);
int max_threads(const Card& card, const KernelInfo& kernel);

// Forgets the modules of a context that ends. Their memory goes with the context's.
void forget_modules(Machine& m, const ContextState& context, const Death& death);

}  // namespace cudasim
