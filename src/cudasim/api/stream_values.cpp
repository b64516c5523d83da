// Values in memory that streams write and wait for. They order nothing for the race checker: the driver does not see such
// an order either, and a program has to express it with events, too (cuda.h).
#include <cstring>
#include <thread>

#include "cudasim/api/capture.hpp"
#include "cudasim/api/contexts.hpp"

namespace cudasim {
namespace {

constexpr unsigned kMostOperations = 255;
constexpr unsigned kConditions = 3;  // the bits of flags that say what is waited for
constexpr auto kBetweenLooks = std::chrono::microseconds(50);

struct ValueOperation {
  Effect place;
  std::uint64_t value = 0;
  unsigned flags = 0;
};

bool is_met(const ValueOperation& operation, std::uint64_t found) {
  const bool wide = operation.place.size == 8;
  const std::uint64_t wanted = operation.value;
  switch (static_cast<cu::WaitValueFlag>(operation.flags)) {
    case cu::WaitValueFlag::kAtLeast:  // cyclic
      return wide ? static_cast<std::int64_t>(found - wanted) >= 0
                  : static_cast<std::int32_t>(static_cast<std::uint32_t>(found - wanted)) >= 0;
    case cu::WaitValueFlag::kEqual:
      return found == wanted;
    case cu::WaitValueFlag::kAnd:
      return (found & wanted) != 0;
    case cu::WaitValueFlag::kNor:
      return (~(found | wanted) & (wide ? ~std::uint64_t{0} : 0xffffffff)) != 0;
  }
  return true;
}

// The bytes that an operation is about; null with an error if they are gone, and without one if the machine is.
Result find_value(const ValueOperation& operation, char*& data) {
  data = nullptr;
  std::vector<Piece> pieces;
  if (!machine().initialised || machine().ending) return kSuccess;
  if (!locate(machine(), operation.place, &pieces)) return kIllegalAddress;
  data = pieces.front().data;
  return kSuccess;
}

Result write_value(const ValueOperation& operation) {
  const std::lock_guard lock(machine().mutex);
  char* data = nullptr;
  const Result result = find_value(operation, data);
  if (data != nullptr) std::memcpy(data, &operation.value, operation.place.size);
  return result;
}

// Looks again and again, as a device does; the program, or another stream, writes the value.
Result wait_for_value(const ValueOperation& operation) {
  while (true) {
    {
      const std::lock_guard lock(machine().mutex);
      char* data = nullptr;
      const Result result = find_value(operation, data);
      if (data == nullptr) return result;
      std::uint64_t found = 0;
      std::memcpy(&found, data, operation.place.size);
      if (is_met(operation, found)) return kSuccess;
    }
    std::this_thread::sleep_for(kBetweenLooks);
  }
}

ValueOperation checked_operation(Call& call, const StreamRef& stream, const cu::StreamMemOp& given) {
  using enum cu::StreamMemOpType;
  const bool write = given.operation == kWrite32 || given.operation == kWrite64;
  const std::uint64_t size = given.operation == kWait64 || given.operation == kWrite64 ? 8 : 4;
  require(given.address % size == 0, kInvalidValue);
  require(write ? given.flags == 0 : given.flags <= kConditions, kInvalidValue);
  const Range* range = call.machine.space->find(given.address);
  require(range == nullptr || range->kind != RangeKind::kManaged, kInvalidValue);
  const ValueOperation operation{.place = {given.address, size, write, false, stream->context},
                                 .value = size == 4 ? given.value & 0xffffffff : given.value,
                                 .flags = given.flags};
  require(locate(call.machine, operation.place, nullptr), kInvalidValue);
  return operation;
}

void queue_operation(Call& call, const StreamRef& stream, const cu::StreamMemOp& given) {
  using enum cu::StreamMemOpType;
  Work work{.name = call.name, .node = cu::GraphNodeType::kBatchMemOp};
  switch (given.operation) {
    case kWrite32:
    case kWrite64:
      work.run = [operation = checked_operation(call, stream, given)] { return write_value(operation); };
      work.track = [address = given.address, wide = given.operation == kWrite64](Call& now, Work&) {
        now.machine.values.mark(*now.machine.space, address, wide ? 8 : 4, Content::kKnown);
      };
      break;
    case kWait32:
    case kWait64:
      work.run = [operation = checked_operation(call, stream, given)] { return wait_for_value(operation); };
      work.on_worker = true;
      break;
    case kBarrier:
      require(given.barrier_flags <= 1, kInvalidValue);
      break;
    case kFlushRemoteWrites:  // the device says that it cannot
      throw Refusal{kNotSupported};
    default:
      throw Refusal{kInvalidValue};
  }
  submit(call, stream, std::move(work));
}

Result queue_value(std::string_view name, cu::Stream handle, cu::StreamMemOpType type, cu::DevicePtr address,
                   std::uint64_t value, unsigned flags) {
  return enter(name, Need::kContext, [&](Call& call) {
    cu::StreamMemOp given{};
    given.operation = type;
    given.address = address;
    given.value = value;
    given.flags = flags;
    queue_operation(call, stream_of(call, handle), given);
    return kSuccess;
  });
}

Result queue_batch(cu::Stream handle, unsigned count, const cu::StreamMemOp* operations, unsigned flags) {
  return enter("cuStreamBatchMemOp", Need::kContext, [&](Call& call) {
    require(count <= kMostOperations && flags == 0 && (count == 0 || operations != nullptr), kInvalidValue);
    const StreamRef stream = stream_of(call, handle);
    for (unsigned i = 0; i < count; ++i) {  // all or none
      const bool about_value = operations[i].operation != cu::StreamMemOpType::kBarrier &&
                               operations[i].operation != cu::StreamMemOpType::kFlushRemoteWrites;
      if (about_value) checked_operation(call, stream, operations[i]);
    }
    for (unsigned i = 0; i < count; ++i) queue_operation(call, stream, operations[i]);
    return kSuccess;
  });
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;
using cu::StreamMemOpType;

CUDASIM_EXPORT Result cuStreamWriteValue32(cu::Stream stream, cu::DevicePtr address, std::uint32_t value,
                                           unsigned flags) {
  return queue_value("cuStreamWriteValue32", stream, StreamMemOpType::kWrite32, address, value, flags & ~1U);
}

CUDASIM_EXPORT Result cuStreamWriteValue32_v2(cu::Stream stream, cu::DevicePtr address, std::uint32_t value,
                                              unsigned flags) {
  return queue_value("cuStreamWriteValue32", stream, StreamMemOpType::kWrite32, address, value, flags);
}

CUDASIM_EXPORT Result cuStreamWriteValue64(cu::Stream stream, cu::DevicePtr address, std::uint64_t value,
                                           unsigned flags) {
  return queue_value("cuStreamWriteValue64", stream, StreamMemOpType::kWrite64, address, value, flags & ~1U);
}

CUDASIM_EXPORT Result cuStreamWriteValue64_v2(cu::Stream stream, cu::DevicePtr address, std::uint64_t value,
                                              unsigned flags) {
  return queue_value("cuStreamWriteValue64", stream, StreamMemOpType::kWrite64, address, value, flags);
}

CUDASIM_EXPORT Result cuStreamWaitValue32(cu::Stream stream, cu::DevicePtr address, std::uint32_t value,
                                          unsigned flags) {
  return queue_value("cuStreamWaitValue32", stream, StreamMemOpType::kWait32, address, value, flags);
}

CUDASIM_EXPORT Result cuStreamWaitValue32_v2(cu::Stream stream, cu::DevicePtr address, std::uint32_t value,
                                             unsigned flags) {
  return queue_value("cuStreamWaitValue32", stream, StreamMemOpType::kWait32, address, value, flags);
}

CUDASIM_EXPORT Result cuStreamWaitValue64(cu::Stream stream, cu::DevicePtr address, std::uint64_t value,
                                          unsigned flags) {
  return queue_value("cuStreamWaitValue64", stream, StreamMemOpType::kWait64, address, value, flags);
}

CUDASIM_EXPORT Result cuStreamWaitValue64_v2(cu::Stream stream, cu::DevicePtr address, std::uint64_t value,
                                             unsigned flags) {
  return queue_value("cuStreamWaitValue64", stream, StreamMemOpType::kWait64, address, value, flags);
}

CUDASIM_EXPORT Result cuStreamBatchMemOp(cu::Stream stream, unsigned count, cu::StreamMemOp* operations,
                                         unsigned flags) {
  return queue_batch(stream, count, operations, flags);
}

CUDASIM_EXPORT Result cuStreamBatchMemOp_v2(cu::Stream stream, unsigned count, cu::StreamMemOp* operations,
                                            unsigned flags) {
  return queue_batch(stream, count, operations, flags);
}
