// cuBLAS: nothing is computed. Results in host memory are those of zeros; copies between host and device are real.
#include "standins/common/behaviours.hpp"
#include "standins/common/version.hpp"

namespace {

using namespace standins;

constexpr int kNoHandle = 1;       // CUBLAS_STATUS_NOT_INITIALIZED
constexpr int kBadArgument = 7;    // CUBLAS_STATUS_INVALID_VALUE
constexpr int kMappingError = 11;  // CUBLAS_STATUS_MAPPING_ERROR
constexpr int kFailed = 13;        // CUBLAS_STATUS_EXECUTION_FAILED
constexpr int kVersion = by_release(120900, 130400);

struct ComplexFloat {
  float real, imaginary;
  explicit ComplexFloat(float value) : real(value), imaginary(0) {}
};
struct ComplexDouble {
  double real, imaginary;
  explicit ComplexDouble(double value) : real(value), imaginary(0) {}
};

// The size of a result of type cudaDataType: real types have 2 to 8 bytes, complex ones twice that.
std::size_t size_of(Word type) {
  switch (static_cast<int>(type)) {
    case 1:  // double
      return 8;
    case 4:  // complex float
      return 8;
    case 5:  // complex double
      return 16;
    case 0:  // float
      return 4;
    default:  // half precision
      return 2;
  }
}

int write_typed_scalar(Word handle, Word address, Word type) {
  const Object* const object = find_object(handle);
  if (object == nullptr) return kNoHandle;
  if (is_result_on_host(*object) && address != 0) {
    auto* const bytes = reinterpret_cast<unsigned char*>(address);
    for (std::size_t i = 0; i < size_of(type); ++i) bytes[i] = 0;
  }
  return 0;
}

// A matrix of `columns` columns, each `bytes` long, as it lies in host and in device memory.
struct Copy {
  std::size_t columns, bytes;
  Word from;
  std::size_t from_step;
  Word to;
  std::size_t to_step;
};

int copy(const char* function, Copy what, Word stream) {
  using CopyAsync = int (*)(Word to, Word from, std::size_t bytes, Word stream);
  const auto copy_async = driver_function<CopyAsync>(function);
  if (copy_async == nullptr) return 0;
  if (what.from_step == what.bytes && what.to_step == what.bytes) {
    what.bytes *= what.columns;
    what.columns = what.bytes > 0 ? 1 : 0;
  }
  for (std::size_t i = 0; i < what.columns; ++i) {
    if (copy_async(what.to + i * what.to_step, what.from + i * what.from_step, what.bytes, stream) != 0)
      return kMappingError;
  }
  return 0;
}

int finish(int status) {
  using Synchronize = int (*)(Word stream);
  const auto synchronize = driver_function<Synchronize>("cuStreamSynchronize");
  if (status == 0 && synchronize != nullptr && synchronize(0) != 0) return kMappingError;
  return status;
}

constexpr const char* kToDevice = "cuMemcpyHtoDAsync_v2";
constexpr const char* kToHost = "cuMemcpyDtoHAsync_v2";

std::size_t times(Word a, Word b) { return static_cast<std::size_t>(as_int(a) * as_int(b)); }

// (n, elemSize, x, incx, y, incy)
Copy vector(Word n, Word size, Word x, Word incx, Word y, Word incy) {
  return {.columns = times(n, 1),
          .bytes = times(size, 1),
          .from = x,
          .from_step = times(incx, size),
          .to = y,
          .to_step = times(incy, size)};
}

// (rows, cols, elemSize, A, lda, B, ldb)
Copy matrix(Word rows, Word columns, Word size, Word a, Word lda, Word b, Word ldb) {
  return {.columns = times(columns, 1),
          .bytes = times(rows, size),
          .from = a,
          .from_step = times(lda, size),
          .to = b,
          .to_step = times(ldb, size)};
}

const char* status_name(Word status) {
  switch (static_cast<int>(status)) {
    case 0:
      return "CUBLAS_STATUS_SUCCESS";
    case kNoHandle:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case kBadArgument:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case kMappingError:
      return "CUBLAS_STATUS_MAPPING_ERROR";
    case kFailed:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    default:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
  }
}

// The status in host memory, then one for each matrix in device memory.
int least_squares(Word handle, Word info, Word device_info, Word batch) {
  const Object* const object = find_object(handle);
  if (object == nullptr) return kNoHandle;
  if (!write<int>(info, 0)) return kBadArgument;
  return clear_device_ints(*object, device_info, as_int(batch)) ? 0 : kFailed;
}

}  // namespace

#include "standins/cublas/cublas.def"

RETURN(cublasGetStatusName, const char*, status_name(a0))
RETURN(cublasGetStatusString, const char*, status_name(a0))

STANDIN_FUNCTION(cublasAsumEx) { return write_typed_scalar(a0, a5, a6); }
STANDIN_FUNCTION(cublasNrm2Ex) { return write_typed_scalar(a0, a5, a6); }
STANDIN_FUNCTION(cublasDotEx) { return write_typed_scalar(a0, a8, a9); }
STANDIN_FUNCTION(cublasDotcEx) { return write_typed_scalar(a0, a8, a9); }

STANDIN_FUNCTION(cublasSgelsBatched) { return least_squares(a0, a9, a10, a11); }
STANDIN_FUNCTION(cublasDgelsBatched) { return least_squares(a0, a9, a10, a11); }
STANDIN_FUNCTION(cublasCgelsBatched) { return least_squares(a0, a9, a10, a11); }
STANDIN_FUNCTION(cublasZgelsBatched) { return least_squares(a0, a9, a10, a11); }

STANDIN_FUNCTION(cublasSetVectorAsync) { return copy(kToDevice, vector(a0, a1, a2, a3, a4, a5), a6); }
STANDIN_FUNCTION(cublasGetVectorAsync) { return copy(kToHost, vector(a0, a1, a2, a3, a4, a5), a6); }
STANDIN_FUNCTION(cublasSetMatrixAsync) { return copy(kToDevice, matrix(a0, a1, a2, a3, a4, a5, a6), a7); }
STANDIN_FUNCTION(cublasGetMatrixAsync) { return copy(kToHost, matrix(a0, a1, a2, a3, a4, a5, a6), a7); }
STANDIN_FUNCTION(cublasSetVector) { return finish(copy(kToDevice, vector(a0, a1, a2, a3, a4, a5), 0)); }
STANDIN_FUNCTION(cublasGetVector) { return finish(copy(kToHost, vector(a0, a1, a2, a3, a4, a5), 0)); }
STANDIN_FUNCTION(cublasSetMatrix) { return finish(copy(kToDevice, matrix(a0, a1, a2, a3, a4, a5, a6), 0)); }
STANDIN_FUNCTION(cublasGetMatrix) { return finish(copy(kToHost, matrix(a0, a1, a2, a3, a4, a5, a6), 0)); }
