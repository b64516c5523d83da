// NCCL: a communicator of any size can be made; each process runs dry by itself, as if all ranks had the same data. With one
// rank that is exact: a collective is a copy. Buffers that the real library takes for its channels are not counted.
//
// As in the real library, a thread that serves requests of other ranks sleeps in poll() as long as there are communicators.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <mutex>
#include <thread>

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

// The thread that serves other ranks. It is detached, because the process may exit at any moment; a forked child has none.
class Service {
 public:
  void begin() {
    const std::lock_guard lock(mutex_);
    if (communicators_++ > 0) return;
    const int ending = ::eventfd(0, EFD_CLOEXEC);
    if (ending < 0) return;
    std::thread(serve, ending).detach();
    ending_ = ending;
    process_ = ::getpid();
  }
  void end() {
    const std::lock_guard lock(mutex_);
    if (--communicators_ > 0 || process_ != ::getpid()) return;
    const std::uint64_t one = 1;
    if (::write(ending_, &one, sizeof one) == sizeof one) process_ = 0;
  }

 private:
  static void serve(int ending) {
    pollfd waited{.fd = ending, .events = POLLIN, .revents = 0};
    while (::poll(&waited, 1, -1) <= 0) {
    }
    ::close(ending);
  }

  std::mutex mutex_;
  int communicators_ = 0;
  int ending_ = -1;    // readable when the last communicator is gone
  pid_t process_ = 0;  // in which the thread runs; 0: none does
};
Service& service() {
  static auto& found = *new Service;
  return found;
}

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
  service().begin();
  return add_object(std::move(communicator));
}

int end_communicator(Word communicator) {
  if (find<Communicator>(communicator) == nullptr || !remove_object(communicator)) return kNoHandle;
  service().end();
  return 0;
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

std::size_t size_of(Word data_type) {  // ncclDataType_t
  switch (static_cast<int>(data_type)) {
    case 4:  // 64-bit integers, double
    case 5:
    case 8:
      return 8;
    case 2:  // 32-bit integers, float
    case 3:
    case 7:
      return 4;
    case 6:  // half, bfloat16
    case 9:
      return 2;
    default:
      return 1;
  }
}

// A collective operation: where its data is, and what it copies in units of `bytes`.
struct Exchange {
  Word from, to;
  std::size_t bytes;
  Word stream;
};

int copy_block(const Exchange& what, int from, int to) {
  using CopyAsync = int (*)(Word to, Word from, std::size_t bytes, Word stream);
  const Word source = what.from + static_cast<std::size_t>(from) * what.bytes;
  const Word target = what.to + static_cast<std::size_t>(to) * what.bytes;
  const auto copy = driver_function<CopyAsync>("cuMemcpyDtoDAsync_v2");
  if (copy == nullptr || source == target || what.bytes == 0) return 0;
  return copy(target, source, what.bytes, what.stream) == 0 ? 0 : kUnhandledCuda;
}

// Fills the blocks of all ranks, each with the same one.
int fill_blocks(const Exchange& what, int blocks) {
  for (int i = 0; i < blocks; ++i) {
    if (const int status = copy_block(what, 0, i); status != 0) return status;
  }
  return 0;
}

Exchange exchange(Word from, Word to, Word count, Word data_type, Word stream) {
  return {.from = from, .to = to, .bytes = count * size_of(data_type), .stream = stream};
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

// Runs `body` on the communicator that argument N is.
#define WITH_COMMUNICATOR(name, N, body)                \
  STANDIN_FUNCTION(name) {                              \
    const auto* const ranks = find<Communicator>(a##N); \
    if (ranks == nullptr) return kNoHandle;             \
    body;                                               \
  }

// (from, to, count, type, ...). A root has argument 4 or 5; other ranks of a reduction or a gathering get nothing.
WITH_COMMUNICATOR(ncclAllReduce, 5, return copy_block(exchange(a0, a1, a2, a3, a6), 0, 0))
WITH_COMMUNICATOR(ncclReduce, 6, return ranks->rank == as_int(a5) ? copy_block(exchange(a0, a1, a2, a3, a7), 0, 0) : 0)
WITH_COMMUNICATOR(ncclBroadcast, 5,
                  return ranks->rank == as_int(a4) ? copy_block(exchange(a0, a1, a2, a3, a6), 0, 0) : 0)
WITH_COMMUNICATOR(ncclReduceScatter, 5, return copy_block(exchange(a0, a1, a2, a3, a6), ranks->rank, 0))
WITH_COMMUNICATOR(ncclAllGather, 4, return fill_blocks(exchange(a0, a1, a2, a3, a5), ranks->size))
WITH_COMMUNICATOR(ncclGather, 5,
                  return ranks->rank == as_int(a4) ? fill_blocks(exchange(a0, a1, a2, a3, a6), ranks->size) : 0)
WITH_COMMUNICATOR(ncclScatter, 5,
                  return ranks->rank == as_int(a4) ? copy_block(exchange(a0, a1, a2, a3, a6), ranks->rank, 0) : 0)
WITH_COMMUNICATOR(ncclAlltoAll, 4,
                  return copy_block(exchange(a0, a1, a2* static_cast<Word>(ranks->size), a3, a5), 0, 0))

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

STANDIN_FUNCTION(ncclCommDestroy) { return end_communicator(a0); }
STANDIN_FUNCTION(ncclCommAbort) { return end_communicator(a0); }

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
