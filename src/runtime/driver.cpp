#include "runtime/driver.hpp"

#include <dlfcn.h>

namespace cudart {
namespace {

const Driver* open() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  auto* found = new Driver;  // never destroyed: other libraries call the runtime while the process exits
#define CU_FUNCTION(name, version, symbol, stream, params) found->symbol.set(dlsym(library, #symbol));
#define CU_FUNCTION_13 CU_FUNCTION
#include "abi/functions.def"
#undef CU_FUNCTION_13
#undef CU_FUNCTION
  return found->cuInit ? found : nullptr;
}

}  // namespace

const Driver* driver() {
  static const Driver* const opened = open();
  return opened;
}

}  // namespace cudart
