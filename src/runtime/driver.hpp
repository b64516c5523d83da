// The driver that the runtime stands on: libcuda.so.1, NVIDIA's or the simulated one, opened when it is first needed.
#pragma once

#include <bit>
#include <type_traits>

#include "abi/runtime/types.hpp"

namespace cudart {

namespace cu = arena::cu;
namespace rt = arena::rt;
using rt::Error;

// The runtime's enums, flags and opaque structs have the driver's numbers and layouts, under other names. The casts are
// in one place: here.
template <typename Wanted, typename Given>
Wanted as_driver(Given given) {
  if constexpr (std::is_arithmetic_v<Wanted> && std::is_arithmetic_v<Given>) {
    return static_cast<Wanted>(given);
  } else if constexpr (std::is_convertible_v<Given, Wanted>) {
    return given;
  } else if constexpr (std::is_pointer_v<Wanted> && std::is_pointer_v<Given>) {
    return reinterpret_cast<Wanted>(given);
  } else if constexpr (std::is_class_v<Wanted>) {
    return std::bit_cast<Wanted>(given);
  } else {
    static_assert(std::is_enum_v<Wanted> && sizeof(Wanted) == sizeof(Given));
    return static_cast<Wanted>(given);
  }
}

// A function of the driver. One that an older driver lacks returns an error instead of crashing.
template <typename Type>
class DriverFunction;

template <typename... Args>
class DriverFunction<cu::Result(Args...)> {
 public:
  using Pointer = cu::Result (*)(Args...);
  void set(void* address) { pointer_ = reinterpret_cast<Pointer>(address); }
  explicit operator bool() const { return pointer_ != nullptr; }
  template <typename... Given>
  cu::Result operator()(Given... given) const {
    static_assert(sizeof...(Given) == sizeof...(Args));
    return pointer_ != nullptr ? pointer_(as_driver<Args>(given)...) : cu::Result::kCallRequiresNewerDriver;
  }

 private:
  Pointer pointer_ = nullptr;
};

// Every function that is declared in abi/functions.def, by the symbol that a driver exports.
struct Driver {
#define CU_FUNCTION(name, version, symbol, stream, params) DriverFunction<cu::fn::symbol> symbol;
#define CU_FUNCTION_13 CU_FUNCTION
#include "abi/functions.def"
#undef CU_FUNCTION_13
#undef CU_FUNCTION
};

// Null if there is no driver. The same for the life of the process.
const Driver* driver();

}  // namespace cudart
