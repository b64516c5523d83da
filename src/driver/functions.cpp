#include "driver/functions.hpp"

#include <cstdint>
#include <string_view>

namespace arena {
namespace {

struct Row {
  std::string_view name;
  int version;
  std::string_view symbol;
  bool operator==(const Row&) const = default;
};

constexpr Row kDeclared[] = {
#define CU_FUNCTION(name, version, symbol, stream, params) {#name, version, #symbol},
#define CU_FUNCTION_13 CU_FUNCTION
#include "abi/functions.def"
#undef CU_FUNCTION_13
#undef CU_FUNCTION
};

constexpr bool is_declared(const Row& needed) {
  for (const Row& row : kDeclared) {
    if (row == needed) return true;
  }
  return false;
}

// With a wrong version, the lookup would return a function with other parameters.
#define ARENA_NEEDS(name, version, symbol, need) \
  static_assert(is_declared({#name, version, #symbol}), #symbol " does not match its row in abi/functions.def");
#include "driver/needed.def"
#undef ARENA_NEEDS

enum class Need { kRequired, kOptional };

// Asks the driver first: only it knows which of its symbols implements a given version.
class Finder {
 public:
  explicit Finder(const Library& library)
      : library_(library),
        ask_(library.function<cu::fn::cuGetProcAddress_v2>("cuGetProcAddress_v2")),
        ask_v1_(library.function<cu::fn::cuGetProcAddress>("cuGetProcAddress")) {}

  void* find(const char* name, int version, const char* symbol) const {
    void* function = ask(name, version);
    return function ? function : library_.symbol(symbol);
  }

 private:
  void* ask(const char* name, int version) const {
    // In every call of the arena the null stream means the legacy one.
    constexpr std::uint64_t kFlags = cu::bits(cu::ProcAddressFlag::kLegacyStream);
    void* function = nullptr;
    cu::Result result = cu::Result::kNotFound;
    if (ask_) {
      cu::ProcAddressQuery found{};
      result = ask_(name, &function, version, kFlags, &found);
    } else if (ask_v1_) {
      result = ask_v1_(name, &function, version, kFlags);
    }
    return result == cu::Result::kSuccess ? function : nullptr;
  }

  const Library& library_;
  cu::fn::cuGetProcAddress_v2* ask_;
  cu::fn::cuGetProcAddress* ask_v1_;
};

}  // namespace

FoundFunctions find_functions(const Library& library) {
  Finder finder(library);
  FoundFunctions found;
  auto fill = [&]<typename Function>(Function*& slot, const char* name, int version, const char* symbol, Need need) {
    slot = reinterpret_cast<Function*>(finder.find(name, version, symbol));
    if (slot || need == Need::kOptional) return;
    found.missing.push_back(std::string(name) + " (version " + std::to_string(version) + ")");
  };
#define ARENA_NEEDS(name, version, symbol, need) fill(found.functions.name, #name, version, #symbol, Need::need);
#include "driver/needed.def"
#undef ARENA_NEEDS
  return found;
}

}  // namespace arena
