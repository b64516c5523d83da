// The CUDA driver's binary interface, declared in our own words: types, structs, constants and function types. Owns no
// code and calls nothing. Everything here is checked against NVIDIA's headers by tools/check_abi.py.
#pragma once

#include <cstddef>
#include <cstdint>

namespace arena::cu {

using Device = int;
using DevicePtr = unsigned long long;
using MemHandle = unsigned long long;
using Context = struct ContextTag*;
using GreenContext = struct GreenContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Graph = struct GraphTag*;
using GraphExec = struct GraphExecTag*;
using GraphNode = struct GraphNodeTag*;
using MemPool = struct MemPoolTag*;
using Array = struct ArrayTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;
using Library = struct LibraryTag*;
using Kernel = struct KernelTag*;
using UserObject = struct UserObjectTag*;
struct ExecAffinityParam;  // opaque to us

using Ints3 = int[3];
using Bytes4 = unsigned char[4];
using Bytes5 = unsigned char[5];
using Bytes8 = unsigned char[8];
using Bytes16 = unsigned char[16];
using Bytes54 = unsigned char[54];
using Bytes64 = unsigned char[64];

enum class Result : unsigned {
#define CU_RESULT(ours, theirs, value, text) ours = value,
#include "abi/results.def"
#undef CU_RESULT
};

#define CU_ENUM(ours, theirs) enum class ours : unsigned {
#define CU_VALUE(ours, theirs, value) ours = value,
#define CU_END_ENUM(ours) \
  }                       \
  ;
#include "abi/constants.def"
#undef CU_ENUM
#undef CU_VALUE
#undef CU_END_ENUM

using HostFunction = void (*)(void* data);
using StreamCallback = void (*)(Stream stream, Result status, void* data);
using BlockToSharedSize = std::size_t (*)(int block_size);

#define CU_STRUCT(ours, theirs) struct ours {
#define CU_UNION(ours, theirs) union ours {
#define CU_FIELD(type, ours, theirs) type ours;
#define CU_PAD(type, ours) type ours;
#define CU_END(ours) \
  }                  \
  ;
#include "abi/structs.def"
#undef CU_STRUCT
#undef CU_UNION
#undef CU_FIELD
#undef CU_PAD
#undef CU_END

// One function type per exported symbol: fn::cuMemAlloc_v2 and so on.
namespace fn {
#define CU_FUNCTION(name, version, symbol, stream, params) using symbol = Result params;
#define CU_FUNCTION_13 CU_FUNCTION
#include "abi/functions.def"
#undef CU_FUNCTION_13
#undef CU_FUNCTION
}  // namespace fn

// For flags, which the API passes as plain integers.
template <typename Enum>
constexpr unsigned bits(Enum value) {
  return static_cast<unsigned>(value);
}

// The two special values of a stream handle. The null stream means the legacy one, or the calling thread's own in
// programs built for per-thread default streams.
inline Stream legacy_stream() { return reinterpret_cast<Stream>(std::uintptr_t{1}); }
inline Stream per_thread_stream() { return reinterpret_cast<Stream>(std::uintptr_t{2}); }

// "CUDA_ERROR_OUT_OF_MEMORY" and what it means; null for a code that is not declared here.
const char* error_name(Result error);
const char* error_text(Result error);

}  // namespace arena::cu
