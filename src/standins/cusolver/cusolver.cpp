// cuSOLVER: nothing is solved. A status in device memory is cleared in stream order (see common/driver.hpp), so that
// programs that check it go on. Workspace sizes are an assumption: what a blocked algorithm of LAPACK would use for the
// same problem, or what CUDASIM_WORKSPACE_CUSOLVER says.
#include <algorithm>

#include "standins/common/behaviours.hpp"
#include "standins/common/version.hpp"

namespace {

using namespace standins;

constexpr int kNoHandle = 1;     // CUSOLVER_STATUS_NOT_INITIALIZED
constexpr int kBadArgument = 3;  // CUSOLVER_STATUS_INVALID_VALUE
constexpr int kFailed = 6;       // CUSOLVER_STATUS_EXECUTION_FAILED
constexpr int kVersion = by_release(110705, 120200);

// Estimates, in elements.
constexpr std::int64_t kBlock = 64;  // columns that a blocked factorisation takes at a time

std::int64_t panel(Word m, Word n) { return kBlock * std::max<std::int64_t>({as_int(m), as_int(n), 1}); }
std::int64_t eigen(Word n) { return 1 + 6 * as_int(n) + 2 * as_int(n) * as_int(n); }
std::int64_t jacobi(Word m, Word n) { return 2 * as_int(m) * as_int(n) + panel(m, n); }
std::int64_t svd(Word m, Word n) {
  const std::int64_t smaller = std::min(as_int(m), as_int(n));
  return smaller * smaller + kBlock * (as_int(m) + as_int(n));
}
// A copy of the matrix and of the right-hand sides.
std::uint64_t refined(Word n, Word right_sides) {
  return static_cast<std::uint64_t>(as_int(n) * as_int(n) + as_int(n) * as_int(right_sides));
}

// A size in elements of `size` bytes. The functions that use it return an int.
std::int64_t elements(std::uint64_t size, std::int64_t count) {
  const std::uint64_t bytes =
      workspace("CUSOLVER", textbook(size * static_cast<std::uint64_t>(std::max<std::int64_t>(count, 1))));
  return static_cast<std::int64_t>(std::min<std::uint64_t>((bytes + size - 1) / size, INT32_MAX));
}

std::uint64_t size_of(Word data_type) {  // cudaDataType
  switch (static_cast<int>(data_type)) {
    case 0:  // float
      return 4;
    case 5:  // complex double
      return 16;
    default:  // double, complex float
      return 8;
  }
}

}  // namespace

#define SIZES(name, N, M, type, count)                                             \
  STANDIN_FUNCTION(name) {                                                         \
    if (find_object(a0) == nullptr) return kNoHandle;                              \
    const std::uint64_t bytes = size_of(type) * static_cast<std::uint64_t>(count); \
    if (a##N == 0 || a##M == 0) return kBadArgument;                               \
    write<std::size_t>(a##N, workspace("CUSOLVER", textbook(bytes)));              \
    write<std::size_t>(a##M, 0);                                                   \
    return 0;                                                                      \
  }
#define REFINED(name, N, M)                                   \
  STANDIN_FUNCTION(name) {                                    \
    const Object* const handle = find_object(a0);             \
    if (handle == nullptr) return kNoHandle;                  \
    if (!write<int>(a##N, 0)) return kBadArgument;            \
    return clear_device_ints(*handle, a##M, 1) ? 0 : kFailed; \
  }
#define APPROXIMATED(name, N, M, B)                                          \
  STANDIN_FUNCTION(name) {                                                   \
    const Object* const handle = find_object(a0);                            \
    if (handle == nullptr) return kNoHandle;                                 \
    const std::int64_t batch = as_int(a##B);                                 \
    if (a##M != 0) std::fill_n(reinterpret_cast<double*>(a##M), batch, 0.0); \
    return clear_device_ints(*handle, a##N, batch) ? 0 : kFailed;            \
  }

#include "standins/cusolver/cusolver.def"
