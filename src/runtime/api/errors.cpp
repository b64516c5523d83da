// Versions, errors, and looking up functions of the driver.
#include "runtime/exports.hpp"
#include "runtime/state.hpp"

namespace cudart {
namespace {

constexpr int kVersion = CUDART_MAJOR >= 13 ? 13000 : 12090;

// Which default stream a looked-up function uses. Without a flag, the caller's own.
constexpr unsigned long long kPerThreadStream = 2;

const char* name_of(Error error) {
  switch (error) {
#define RT_ERROR(ours, theirs, value, text) \
  case Error::ours:                         \
    return #theirs;
#include "abi/runtime/errors.def"
#undef RT_ERROR
  }
  return "unrecognized error code";
}

const char* own_text(Error error) {
  switch (error) {
#define RT_ERROR(ours, theirs, value, text) \
  case Error::ours:                         \
    return text;
#include "abi/runtime/errors.def"
#undef RT_ERROR
  }
  return "unrecognized error code";
}

Error look_up(const char* symbol, void** function, int version, unsigned long long flags,
              cu::ProcAddressQuery* status) {
  return with_driver([&](const Driver& driver) {
    if (symbol == nullptr || function == nullptr) return Error::kInvalidValue;
    if (flags == 0 && thread_state().null_is_per_thread) flags = kPerThreadStream;
    cu::ProcAddressQuery found{};
    const cu::Result result = driver.cuGetProcAddress_v2(symbol, function, version, flags, &found);
    if (status != nullptr) *status = found;
    if (result == cu::Result::kNotFound) {  // not an error for those who can see the status
      *function = nullptr;
      return status != nullptr ? Error::kSuccess : Error::kSymbolNotFound;
    }
    return error_of(result);
  });
}

}  // namespace
}  // namespace cudart

using namespace cudart;

CUDART_EXPORT Error cudaRuntimeGetVersion(int* version) {
  if (version == nullptr) return remember(Error::kInvalidValue);
  *version = kVersion;
  return Error::kSuccess;
}

// Works without a device, and says 0 without a driver.
CUDART_EXPORT Error cudaDriverGetVersion(int* version) {
  if (version == nullptr) return remember(Error::kInvalidValue);
  *version = 0;
  const Driver* found = driver();
  return found == nullptr ? Error::kSuccess : remember(error_of(found->cuDriverGetVersion(version)));
}

CUDART_EXPORT Error cudaGetLastError() {
  const Error last = thread_state().last;
  thread_state().last = Error::kSuccess;
  return last;
}

CUDART_EXPORT Error cudaPeekAtLastError() { return thread_state().last; }

CUDART_EXPORT const char* cudaGetErrorName(Error error) { return name_of(error); }

CUDART_EXPORT const char* cudaGetErrorString(Error error) {
  const char* text = own_text(error);
  return text != nullptr ? text : cu::error_text(static_cast<cu::Result>(error));
}

CUDART_EXPORT Error cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long flags,
                                            cu::ProcAddressQuery* status) {
  return look_up(symbol, function, kVersion, flags, status);
}

CUDART_EXPORT Error cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned version,
                                                     unsigned long long flags, cu::ProcAddressQuery* status) {
  return look_up(symbol, function, static_cast<int>(version), flags, status);
}

// NVIDIA documents no table, so there is none to give.
CUDART_EXPORT Error cudaGetExportTable(const void** table, const cu::Uuid*) {
  if (table != nullptr) *table = nullptr;
  return remember(Error::kNotSupported);
}
