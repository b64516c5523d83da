// cuSPARSELt: what it describes lives in memory of the caller, as in the real library, which may be copied. Matrices with half
// of their elements zero take 9/16 of their size, with 8-bit elements 10/16: that is what the format needs.
#include <algorithm>
#include <cstring>

#include "standins/common/behaviours.hpp"
#include "standins/common/version.hpp"

namespace {

using namespace standins;

constexpr int kNoHandle = 1;     // CUSPARSE_STATUS_NOT_INITIALIZED
constexpr int kBadArgument = 3;  // CUSPARSE_STATUS_INVALID_VALUE
constexpr int kVersion = 801;    // 0.8.1
constexpr std::size_t kOpaqueSize = 512;

enum class Kind : std::uint64_t { kHandle = 0x6172656e61480001, kMatrix, kProduct, kAlgorithm, kPlan };

// What is at the beginning of those 512 bytes.
struct Opaque {
  Kind kind;
  std::int64_t rows, columns;
  std::int64_t element_size;
  std::int32_t settings[8];  // of an algorithm, by attribute
};
static_assert(sizeof(Opaque) <= kOpaqueSize);

Opaque* opaque(Word address, Kind kind) {
  auto* const found = reinterpret_cast<Opaque*>(address);
  return found != nullptr && found->kind == kind ? found : nullptr;
}

Opaque* initialise(Word address, Kind kind) {
  if (address == 0) return nullptr;
  std::memset(reinterpret_cast<void*>(address), 0, kOpaqueSize);
  auto* const made = reinterpret_cast<Opaque*>(address);
  made->kind = kind;
  return made;
}

bool is_ready(Word handle) { return opaque(handle, Kind::kHandle) != nullptr; }

std::int64_t size_of(Word data_type) {  // cudaDataType
  switch (static_cast<int>(data_type)) {
    case 0:
      return 4;
    case 2:   // half
    case 14:  // bfloat16
      return 2;
    default:
      return 1;
  }
}

// (handle, matrix, rows, columns, leading dimension, alignment, type, ...)
int describe(Word handle, Word matrix, Word rows, Word columns, Word type) {
  if (!is_ready(handle)) return kNoHandle;
  Opaque* const made = initialise(matrix, Kind::kMatrix);
  if (made == nullptr) return kBadArgument;
  made->rows = static_cast<std::int64_t>(rows);
  made->columns = static_cast<std::int64_t>(columns);
  made->element_size = size_of(type);
  return 0;
}

int compressed_size(Word handle, const Opaque* matrix, Word size, Word buffer) {
  if (!is_ready(handle)) return kNoHandle;
  if (matrix == nullptr || size == 0 || buffer == 0) return kBadArgument;
  const std::int64_t sixteenths = matrix->element_size == 1 ? 10 : 9;
  write(size, static_cast<std::size_t>(matrix->rows * matrix->columns * matrix->element_size * sixteenths / 16));
  write<std::size_t>(buffer, 0);
  return 0;
}

int clear(Word handle, Word data, std::size_t size) {
  if (!is_ready(handle)) return kNoHandle;
  if (data == 0) return kBadArgument;
  std::memset(reinterpret_cast<void*>(data), 0, size);
  return 0;
}

int copy_setting(Word handle, Word selection, Word attribute, Word data, std::size_t size, bool is_set) {
  if (!is_ready(handle)) return kNoHandle;
  Opaque* const algorithm = opaque(selection, Kind::kAlgorithm);
  const auto index = static_cast<unsigned>(attribute);
  if (algorithm == nullptr || index >= 8 || data == 0) return kBadArgument;
  void* const setting = &algorithm->settings[index];
  void* const other = reinterpret_cast<void*>(data);
  std::memcpy(is_set ? setting : other, is_set ? other : setting, std::min(size, sizeof(std::int32_t)));
  return 0;
}

const char* status_name(Word status) {
  switch (static_cast<int>(status)) {
    case 0:
      return "CUSPARSE_STATUS_SUCCESS";
    case kNoHandle:
      return "CUSPARSE_STATUS_NOT_INITIALIZED";
    case kBadArgument:
      return "CUSPARSE_STATUS_INVALID_VALUE";
    default:
      return "CUSPARSE_STATUS_INTERNAL_ERROR";
  }
}

}  // namespace

#define READY(name) \
  STANDIN_FUNCTION(name) { return is_ready(a0) ? 0 : kNoHandle; }

#include "standins/cusparselt/cusparselt.def"

RETURN(cusparseLtGetErrorName, const char*, status_name(a0))
RETURN(cusparseLtGetErrorString, const char*, status_name(a0))

STANDIN_FUNCTION(cusparseLtInit) { return initialise(a0, Kind::kHandle) != nullptr ? 0 : kBadArgument; }
STANDIN_FUNCTION(cusparseLtDestroy) {
  if (!is_ready(a0)) return kNoHandle;
  std::memset(reinterpret_cast<void*>(a0), 0, kOpaqueSize);
  return 0;
}
STANDIN_FUNCTION(cusparseLtGetVersion) {
  if (!is_ready(a0)) return kNoHandle;
  return write(a1, kVersion) ? 0 : kBadArgument;
}

STANDIN_FUNCTION(cusparseLtDenseDescriptorInit) { return describe(a0, a1, a2, a3, a6); }
STANDIN_FUNCTION(cusparseLtStructuredDescriptorInit) { return describe(a0, a1, a2, a3, a6); }
STANDIN_FUNCTION(cusparseLtMatDescGetAttribute) { return clear(a0, a3, a4); }
STANDIN_FUNCTION(cusparseLtMatmulDescGetAttribute) { return clear(a0, a3, a4); }

// (handle, product, opA, opB, A, B, C, D, type): the product is as large as its sparse matrix, for compressed_size.
STANDIN_FUNCTION(cusparseLtMatmulDescriptorInit) {
  if (!is_ready(a0)) return kNoHandle;
  const Opaque* const sparse = opaque(a4, Kind::kMatrix);
  Opaque* const product = initialise(a1, Kind::kProduct);
  if (sparse == nullptr || product == nullptr) return kBadArgument;
  *product = *sparse;
  product->kind = Kind::kProduct;
  return 0;
}

STANDIN_FUNCTION(cusparseLtMatmulAlgSelectionInit) {
  if (!is_ready(a0)) return kNoHandle;
  Opaque* const algorithm = initialise(a1, Kind::kAlgorithm);
  if (algorithm == nullptr || opaque(a2, Kind::kProduct) == nullptr) return kBadArgument;
  algorithm->settings[1] = 1;  // how many configurations there are
  algorithm->settings[3] = 1;  // a product is not split
  return 0;
}

STANDIN_FUNCTION(cusparseLtMatmulAlgSetAttribute) { return copy_setting(a0, a1, a2, a3, a4, true); }
STANDIN_FUNCTION(cusparseLtMatmulAlgGetAttribute) { return copy_setting(a0, a1, a2, a3, a4, false); }

STANDIN_FUNCTION(cusparseLtMatmulPlanInit) {
  if (!is_ready(a0)) return kNoHandle;
  const Opaque* const product = opaque(a2, Kind::kProduct);
  Opaque* const plan = initialise(a1, Kind::kPlan);
  if (product == nullptr || plan == nullptr) return kBadArgument;
  *plan = *product;
  plan->kind = Kind::kPlan;
  return 0;
}

STANDIN_FUNCTION(cusparseLtMatmulGetWorkspace) {
  if (!is_ready(a0)) return kNoHandle;
  return write<std::size_t>(a2, workspace("CUSPARSELT", 0)) ? 0 : kBadArgument;
}

STANDIN_FUNCTION(cusparseLtSpMMACompressedSize) { return compressed_size(a0, opaque(a1, Kind::kPlan), a2, a3); }
STANDIN_FUNCTION(cusparseLtSpMMACompressedSize2) { return compressed_size(a0, opaque(a1, Kind::kMatrix), a2, a3); }

// The answer, 0 for a valid matrix, lies in device memory.
// (handle, product, matrix, answer, stream)
STANDIN_FUNCTION(cusparseLtSpMMAPruneCheck) {
  Handle on_stream;
  on_stream.set(Key::kStream, a4);
  return is_ready(a0) && clear_device_ints(on_stream, a3, 1) ? 0 : kNoHandle;
}
// (handle, matrix descriptor, is A, operation, matrix, answer, stream)
STANDIN_FUNCTION(cusparseLtSpMMAPruneCheck2) {
  Handle on_stream;
  on_stream.set(Key::kStream, a6);
  return is_ready(a0) && clear_device_ints(on_stream, a5, 1) ? 0 : kNoHandle;
}
