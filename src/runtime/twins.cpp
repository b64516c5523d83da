// The second names of functions that take a default stream: the same call, with null as the calling thread's stream.
#include "runtime/exports.hpp"
#include "runtime/state.hpp"

// The types of the parameters are named as in functions.def.
using namespace arena::rt;
namespace cu = arena::cu;

#define TWIN_kNone(result, name, params, arguments)
#define TWIN_kPtsz(result, name, params, arguments) \
  CUDART_EXPORT result name##_ptsz params {         \
    const cudart::PerThreadScope scope;             \
    return name arguments;                          \
  }
#define TWIN_kPtds(result, name, params, arguments) \
  CUDART_EXPORT result name##_ptds params {         \
    const cudart::PerThreadScope scope;             \
    return name arguments;                          \
  }
#define RT_FUNCTION(result, name, twin, params, arguments) TWIN_##twin(result, name, params, arguments)
#include "abi/runtime/functions.def"
