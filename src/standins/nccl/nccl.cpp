// NCCL: a communicator of any size can be made; each process runs dry by itself. Buffers that the real library takes for
// its channels are not counted.
#include <atomic>
#include <cstring>

#include "standins/common/behaviours.hpp"

namespace {

using namespace standins;

constexpr int kNoHandle = 4;       // ncclInvalidArgument
constexpr int kBadArgument = 4;    // ncclInvalidArgument
constexpr int kUnhandledCuda = 1;  // ncclUnhandledCudaError
constexpr int kInvalidUsage = 5;   // ncclInvalidUsage
constexpr int kVersion = 23007;
constexpr int kFirstOwnOperation = 5;  // after the five of ncclRedOp_t
constexpr int kNoColor = -1;           // NCCL_SPLIT_NOCOLOR

struct UniqueId {  // ncclUniqueId, passed by value
  char bytes[128];
};

struct Communicator : Object {
  int size = 1, rank = 0, device = 0;
};

struct Window : Object {
  Word address = 0;
};

int current_device() {
  using GetDevice = int (*)(int* device);
  const auto get_device = driver_function<GetDevice>("cuCtxGetDevice");
  int device = 0;
  return get_device != nullptr && get_device(&device) == 0 ? device : 0;
}

Word new_communicator(int size, int rank, int device) {
  auto communicator = std::make_unique<Communicator>();
  communicator->size = size;
  communicator->rank = rank;
  communicator->device = device;
  return add_object(std::move(communicator));
}

int make(Word* communicator, int size, int rank) {
  if (communicator == nullptr || size < 1 || rank < 0 || rank >= size) return kBadArgument;
  *communicator = new_communicator(size, rank, current_device());
  return 0;
}

int fill_id(UniqueId* id) {
  static std::atomic<std::uint64_t> made{0};
  if (id == nullptr) return kBadArgument;
  const std::uint64_t number = ++made;
  *id = {};
  std::memcpy(id->bytes, &number, sizeof number);
  return 0;
}

template <class T>
int answer(Word communicator, T Communicator::* member, Word address) {
  const auto* const object = find<Communicator>(communicator);
  if (object == nullptr) return kNoHandle;
  return write(address, object->*member) ? 0 : kBadArgument;
}

const char* error_text(Word result) {
  switch (static_cast<int>(result)) {
    case 0:
      return "no error";
    case kUnhandledCuda:
      return "unhandled cuda error";
    case kBadArgument:
      return "invalid argument";
    case kInvalidUsage:
      return "invalid usage";
    default:
      return "internal error";
  }
}

}  // namespace

#define COLLECTIVE(name, N) \
  STANDIN_FUNCTION(name) { return find<Communicator>(a##N) != nullptr ? 0 : kNoHandle; }

#include "standins/nccl/nccl.def"

STANDIN_EXPORT int ncclGetUniqueId(UniqueId* id) { return fill_id(id); }
STANDIN_EXPORT int ncclCommGetUniqueId(Word communicator, UniqueId* id) {
  return find<Communicator>(communicator) == nullptr ? kNoHandle : fill_id(id);
}
STANDIN_EXPORT int ncclCommInitRank(Word* communicator, int size, UniqueId, int rank) {
  return make(communicator, size, rank);
}
STANDIN_EXPORT int ncclCommInitRankConfig(Word* communicator, int size, UniqueId, int rank, void*) {
  return make(communicator, size, rank);
}
STANDIN_EXPORT int ncclCommInitRankScalable(Word* communicator, int size, int rank, int, UniqueId*, void*) {
  return make(communicator, size, rank);
}

STANDIN_EXPORT int ncclCommInitAll(Word* communicators, int count, const int* devices) {
  if (communicators == nullptr || count < 1) return kBadArgument;
  for (int i = 0; i < count; ++i) communicators[i] = new_communicator(count, i, devices == nullptr ? i : devices[i]);
  return 0;
}

// Which ranks share a color is not known in one process: the new communicator is like the old one.
STANDIN_EXPORT int ncclCommSplit(Word communicator, int color, int, Word* split, void*) {
  const auto* const object = find<Communicator>(communicator);
  if (object == nullptr) return kNoHandle;
  if (split == nullptr || color < kNoColor) return kBadArgument;
  *split = color == kNoColor ? 0 : new_communicator(object->size, object->rank, object->device);
  return 0;
}

STANDIN_EXPORT int ncclCommShrink(Word communicator, const int* excluded, int count, Word* shrunk, void*, int) {
  const auto* const object = find<Communicator>(communicator);
  if (object == nullptr) return kNoHandle;
  if (shrunk == nullptr || excluded == nullptr || count < 1 || count >= object->size) return kBadArgument;
  int before = 0;
  for (int i = 0; i < count; ++i) before += excluded[i] < object->rank ? 1 : 0;
  *shrunk = new_communicator(object->size - count, object->rank - before, object->device);
  return 0;
}

STANDIN_EXPORT int ncclCommGrow(Word communicator, int size, const UniqueId*, int rank, Word* grown, void*) {
  const auto* const object = find<Communicator>(communicator);  // null for a rank that joins
  return make(grown, size, object != nullptr && rank < 0 ? object->rank : rank);
}

STANDIN_FUNCTION(ncclCommCount) { return answer(a0, &Communicator::size, a1); }
STANDIN_FUNCTION(ncclCommUserRank) { return answer(a0, &Communicator::rank, a1); }
STANDIN_FUNCTION(ncclCommCuDevice) { return answer(a0, &Communicator::device, a1); }

// (communicator, buffer, size, window, flags)
STANDIN_FUNCTION(ncclCommWindowRegister) {
  if (find<Communicator>(a0) == nullptr) return kNoHandle;
  if (a3 == 0) return kBadArgument;
  auto window = std::make_unique<Window>();
  window->address = a1;
  write(a3, add_object(std::move(window)));
  return 0;
}

STANDIN_FUNCTION(ncclCommWindowDeregister) {
  if (find<Communicator>(a0) == nullptr) return kNoHandle;
  return remove_object(a1) ? 0 : kBadArgument;
}

// (communicator, window, pointer)
STANDIN_FUNCTION(ncclWinGetUserPtr) {
  if (find<Communicator>(a0) == nullptr) return kNoHandle;
  const auto* const window = find<Window>(a1);
  return window != nullptr && write(a2, window->address) ? 0 : kBadArgument;
}

// Memory is real: the driver's.
STANDIN_EXPORT int ncclMemAlloc(Word* pointer, std::size_t size) {
  using Allocate = int (*)(Word* pointer, std::size_t size);
  const auto allocate = driver_function<Allocate>("cuMemAlloc_v2");
  if (pointer == nullptr) return kBadArgument;
  return allocate != nullptr && allocate(pointer, size) == 0 ? 0 : kUnhandledCuda;
}

STANDIN_EXPORT int ncclMemFree(Word pointer) {
  using Free = int (*)(Word pointer);
  const auto free = driver_function<Free>("cuMemFree_v2");
  if (pointer == 0) return 0;
  return free != nullptr && free(pointer) == 0 ? 0 : kUnhandledCuda;
}
