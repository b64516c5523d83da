// What the runtime exports but does not do.
#include "runtime/state.hpp"

#define RT_UNSUPPORTED(name) \
  CUDART_EXPORT cudart::Error name() { return cudart::remember(cudart::Error::kNotSupported); }
#include "abi/runtime/unsupported.def"
#undef RT_UNSUPPORTED
