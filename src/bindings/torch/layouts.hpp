// PyTorch's types, as far as their layout goes, and what its own functions were before they were replaced. All are the same in
// PyTorch 2.4 to 2.15.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "abi/types.hpp"
#include "bindings/torch/graphs.hpp"

namespace arena::torch {

using DeviceNumber = signed char;
using OutOfMemoryObserver = std::function<void(std::int64_t, std::size_t, std::size_t, std::size_t)>;
using Deleter = void (*)(void*);

struct TorchState {
  virtual ~TorchState() = default;
};
struct DataPointer {
  void* data;
  std::unique_ptr<void, Deleter> context;
  signed char device_type;
  DeviceNumber device;
};
struct CheckpointDelta {
  std::vector<void*> freed;
  std::vector<DataPointer> allocated;
};
inline constexpr signed char kCuda = 1;

struct Originals {
  void (*raw_delete)(void*, void*) = nullptr;
  void* (*raw_alloc)(void*, std::size_t) = nullptr;
  void* (*raw_alloc_with_stream)(void*, std::size_t, cu::Stream) = nullptr;
  Deleter (*raw_deleter)(const void*) = nullptr;
  int (*copy)(void*, void*, int, const void*, int, std::size_t, cu::Stream, bool) = nullptr;
  void (*empty_cache)(void*, PoolId) = nullptr;
};
inline Originals originals;
inline void* plugged = nullptr;  // the object whose functions were replaced

[[noreturn]] inline void refuse(const std::string& what) { throw std::runtime_error("arena: " + what); }

}  // namespace arena::torch
