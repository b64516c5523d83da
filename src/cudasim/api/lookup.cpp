// Looks up functions by name and version (cuGetProcAddress), and the names of errors.
#include <cstring>

#include "cudasim/machine/exports.hpp"
#include "cudasim/machine/machine.hpp"

namespace cudasim {
namespace {

constexpr bool kStreamless = false;
constexpr bool kDefaultStream = true;

// The same function with the per-thread default stream instead of the legacy one.
template <auto function>
struct PerThread;
template <typename... Args, Result (*function)(Args...)>
struct PerThread<function> {
  static Result call(Args... args) {
    const PerThreadScope scope;
    return function(args...);
  }
};

struct Form {
  const char* name;
  int version;  // that introduced it
  void* legacy;
  void* per_thread;
};

template <auto function, bool has_stream>
void* per_thread_form() {
  if constexpr (has_stream) {
    return reinterpret_cast<void*>(&PerThread<function>::call);
  } else {
    return reinterpret_cast<void*>(function);
  }
}

const Form kForms[] = {
#define CU_FUNCTION(function, since, symbol, stream, params) \
  {.name = #function,                                        \
   .version = since,                                         \
   .legacy = reinterpret_cast<void*>(&::symbol),             \
   .per_thread = per_thread_form<&::symbol, stream>()},
#define CU_FUNCTION_13 CU_FUNCTION
#include "abi/functions.def"
#undef CU_FUNCTION_13
#undef CU_FUNCTION
};

struct Found {
  void* function = nullptr;
  cu::ProcAddressQuery state = cu::ProcAddressQuery::kNotFound;
};

// The newest form that is not newer than `version`.
Found find(const char* name, int version, bool per_thread) {
  Found found;
  int best = 0;
  for (const Form& form : kForms) {
    if (std::strcmp(form.name, name) != 0) continue;
    if (found.state == cu::ProcAddressQuery::kNotFound) found.state = cu::ProcAddressQuery::kVersionNotSufficient;
    if (form.version > version || form.version < best) continue;
    best = form.version;
    found = {per_thread ? form.per_thread : form.legacy, cu::ProcAddressQuery::kFound};
  }
  return found;
}

Result look_up(const char* name, void** function, int version, std::uint64_t flags, Found& found) {
  return enter("cuGetProcAddress", Need::kNothing, [&](Call& call) {
    require(name != nullptr && function != nullptr && flags <= 2, kInvalidValue);
    require(version <= call.machine.settings.version, kInvalidValue);
    found = find(name, version, flags == cu::bits(cu::ProcAddressFlag::kPerThreadStream));
    *function = found.function;
    return kSuccess;
  });
}

template <typename Name>
Result describe(const char* function, Result error, const char** text, Name name) {
  return enter(function, Need::kNothing, [&](Call&) {
    require(text != nullptr, kInvalidValue);
    *text = name(error);
    return *text != nullptr ? kSuccess : kInvalidValue;
  });
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;

CUDASIM_EXPORT Result cuGetProcAddress(const char* name, void** function, int version, std::uint64_t flags) {
  Found found;
  const Result result = look_up(name, function, version, flags, found);
  // The first version of this function returned an error if it found nothing; the second has a parameter for that.
  return result == kSuccess && found.function == nullptr ? kNotFound : result;
}

CUDASIM_EXPORT Result cuGetProcAddress_v2(const char* name, void** function, int version, std::uint64_t flags,
                                          cu::ProcAddressQuery* state) {
  Found found;
  const Result result = look_up(name, function, version, flags, found);
  if (result == kSuccess && state != nullptr) *state = found.state;
  return result;
}

// The contents of these tables are not documented, so a simulation would be a guess.
CUDASIM_EXPORT Result cuGetExportTable(const void** table, const cu::Uuid*) {
  return enter("cuGetExportTable", Need::kNothing, [&](Call&) {
    if (table != nullptr) *table = nullptr;
    return kNotFound;
  });
}

CUDASIM_EXPORT Result cuGetErrorName(Result error, const char** name) {
  return describe("cuGetErrorName", error, name, cu::error_name);
}

CUDASIM_EXPORT Result cuGetErrorString(Result error, const char** text) {
  return describe("cuGetErrorString", error, text, cu::error_text);
}
