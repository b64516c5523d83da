// The CUDA runtime's binary interface, declared in our own words: types, structs, errors and function types. Owns no
// code. tools/check_abi.py checks all of it against NVIDIA's headers. CUDART_MAJOR says which runtime is meant, 12 or 13: they
// differ in some structs and functions.
#pragma once

#include <cstddef>
#include <cstdint>

#include "abi/types.hpp"

#ifndef CUDART_MAJOR
#error "define CUDART_MAJOR as 12 or 13"
#endif

namespace arena::rt {

// Handles are those of the driver: a cudaStream_t is a CUstream.
using cu::Array;
using cu::Event;
using cu::Function;
using cu::Graph;
using cu::GraphEdgeData;
using cu::GraphExec;
using cu::GraphNode;
using cu::HostFunction;
using cu::Kernel;
using cu::Library;
using cu::MemAccessDesc;
using cu::MemLocation;
using cu::MemPool;
using cu::MemPoolProps;
using cu::Stream;
using cu::UserObject;
struct IpcMemHandle {
  char reserved[64];
};
struct IpcEventHandle {
  char reserved[64];
};

enum class Error : unsigned {
#define RT_ERROR(ours, theirs, value, text) ours = value,
#include "abi/runtime/errors.def"
#undef RT_ERROR
};

enum class MemcpyKind : unsigned { kHostToHost, kHostToDevice, kDeviceToHost, kDeviceToDevice, kDefault };
enum class MemoryType : unsigned { kUnregistered, kHost, kDevice, kManaged };

using StreamCallback = void (*)(Stream stream, Error status, void* data);

#define RT_STRUCT(ours, theirs) struct ours {
#define RT_FIELD(type, ours, theirs) type ours;
#define RT_ARRAY(type, ours, theirs, length) type ours[length];
#define RT_PAD(type, ours, length) type ours[length];
#define RT_END(ours) \
  }                  \
  ;
#include "abi/runtime/structs.def"
#undef RT_STRUCT
#undef RT_FIELD
#undef RT_ARRAY
#undef RT_PAD
#undef RT_END

// One function type per exported symbol: fn::cudaMalloc and so on.
namespace fn {
#define RT_FUNCTION(result, name, twin, params, arguments) using name = result params;
#include "abi/runtime/functions.def"
#undef RT_FUNCTION
}  // namespace fn

}  // namespace arena::rt
